package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

func TestDefault(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the paths are not Windows'")
	}
	for want, env := range map[string]map[string]string{
		"/c/drawbridge/drawbridge.yaml":         {"XDG_CONFIG_HOME": "/c", "HOME": "/h"},
		"/h/.config/drawbridge/drawbridge.yaml": {"XDG_CONFIG_HOME": "relative", "HOME": "/h"},
	} {
		if got := Default(func(k string) string { return env[k] }); got != want {
			t.Errorf("%v: %s, want %s", env, got, want)
		}
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, Name)
	if err := os.WriteFile(file, []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	src, err := Read(file, 4)
	if err != nil || string(src.Data) != "01234" || src.Path != file {
		t.Errorf("%+v %v", src, err)
	}
	if _, err := Read(filepath.Join(dir, "none"), 4); !errors.Is(err, fs.ErrNotExist) || fault.KindOf(err) != fault.Usage || fault.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	if _, err := Read(dir, 4); err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Errorf("%v", err)
	}
	if runtime.GOOS == "windows" {
		return
	}
	if _, err := Read("/dev/zero", 4); err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Errorf("%v", err)
	}
	if err := os.Chmod(file, 0o606); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(file, 4); err == nil || !strings.Contains(err.Error(), "every user") || !strings.Contains(fault.HintOf(err), "chmod o-w") {
		t.Errorf("%v", err)
	}
}

// A run that can replace the link decides what the next run reads.
func TestCheckPlace(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("links need rights there")
	}
	dir := t.TempDir()
	work, else_ := filepath.Join(dir, "work"), filepath.Join(dir, "else")
	for _, d := range []string{work, else_, filepath.Join(work, "sub")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{filepath.Join(work, "own.yaml"), filepath.Join(else_, "p.yaml"), filepath.Join(work, "sub", "own.yaml")} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"work/link.yaml": "../else/p.yaml", "work/folder": "../else", "else/link.yaml": "p.yaml", "alias": "work", "work/inner.yaml": "own.yaml"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for file, ok := range map[string]bool{
		"work/own.yaml": true, "work/sub/own.yaml": true, "else/p.yaml": true, "else/link.yaml": true, "alias/own.yaml": true,
		"work/link.yaml": false, "work/folder/p.yaml": false, "work/inner.yaml": false, "alias/link.yaml": false,
	} {
		for _, folder := range []string{"work", "alias"} {
			err := CheckPlace(filepath.Join(dir, file), filepath.Join(dir, folder))
			if (err == nil) != ok {
				t.Errorf("%s for a run in %s: %v", file, folder, err)
			}
		}
	}
}
