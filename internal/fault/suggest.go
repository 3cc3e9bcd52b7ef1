package fault

import "strings"

// Suggest returns a hint naming the candidate nearest to what was written, or
// the candidates themselves where none is near, or "" where there are none.
func Suggest(written string, candidates []string) string {
	best, at := "", 1+max(1, len(written)/3)
	for _, c := range candidates {
		if d := distance(strings.ToLower(written), strings.ToLower(c)); d < at {
			best, at = c, d
		}
	}
	switch {
	case best != "":
		return "did you mean " + best + "?"
	case len(candidates) > 0 && len(candidates) <= 20:
		return "there are: " + strings.Join(candidates, ", ")
	}
	return ""
}

// distance counts the edits (insert, delete, replace, swap of neighbours)
// between a and b.
func distance(a, b string) int {
	if len(a) > 128 || len(b) > 128 { // the time is the product of both
		return max(len(a), len(b))
	}
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)}
	for j := range rows[1] {
		rows[1][j] = j
	}
	for i := 1; i <= len(a); i++ {
		prev2, prev, cur := rows[(i+2)%3], rows[i%3], rows[(i+1)%3]
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
	}
	return rows[(len(a)+1)%3][len(b)]
}
