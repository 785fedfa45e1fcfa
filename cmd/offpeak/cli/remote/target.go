package remote

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"offpeak"
	"offpeak/wire"
)

// Target is a grid and who one is there.
type Target struct {
	// Name is the context's name.
	Name string `yaml:"name" json:"name"`
	// Hubs are addresses, any of which will do.
	Hubs []string `yaml:"hubs" json:"hubs"`
	// Token is the bearer token; it is never printed.
	Token string `yaml:"token" json:"-"`
	// Fingerprint pins the hub's key, "" on plain loopback HTTP or where a
	// public authority vouches for it.
	Fingerprint string `yaml:"fingerprint,omitempty" json:"fingerprint,omitempty"`
}

// Contexts is the contexts file: the grids one has logged in to.
type Contexts struct {
	// Current is the name of the context in use, "" for the local file.
	Current  string   `yaml:"current" json:"current"`
	Contexts []Target `yaml:"contexts" json:"contexts"`
}

// LoadContexts reads the contexts file; one that is not there is empty.
func LoadContexts(path string) (Contexts, error) {
	var c Contexts
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	} else if err != nil {
		return c, fmt.Errorf("read contexts: %w", err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&c); err != nil {
		return c, fmt.Errorf("read contexts %s: %w", path, err)
	}
	return c, nil
}

// Save writes the contexts file, readable by its owner only, as a whole or not
// at all.
func (c Contexts) Save(path string) error {
	data, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("write contexts: %w", err)
	}
	if err := WritePrivate(path, data); err != nil {
		return fmt.Errorf("write contexts: %w", err)
	}
	return nil
}

// WritePrivate replaces a file by one with mode 0600, and makes its folder.
func WritePrivate(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	// CreateTemp makes files with mode 0600.
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// Find returns the context of a name.
func (c Contexts) Find(name string) (Target, bool) {
	for _, t := range c.Contexts {
		if t.Name == name {
			return t, true
		}
	}
	return Target{}, false
}

// Put adds a context or replaces the one of its name.
func (c *Contexts) Put(t Target) {
	for i := range c.Contexts {
		if c.Contexts[i].Name == t.Name {
			c.Contexts[i] = t
			return
		}
	}
	c.Contexts = append(c.Contexts, t)
}

// Remove removes a context; it says whether there was one.
func (c *Contexts) Remove(name string) bool {
	for i := range c.Contexts {
		if c.Contexts[i].Name != name {
			continue
		}
		c.Contexts = append(c.Contexts[:i], c.Contexts[i+1:]...)
		if c.Current == name {
			c.Current = ""
		}
		return true
	}
	return false
}

// CheckAddress refuses what is no address of a hub, and addresses that would
// send a token in the clear. field is where it stands.
func CheckAddress(field, base string) error {
	bad := func(rule string) error { return &offpeak.FieldError{Field: field, Value: base, Rule: rule} }
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return bad("is an address like https://hub.example:7070")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
		return bad("has no user, path or query")
	}
	if u.Scheme == "http" && !wire.Loopback(u.Hostname()) {
		return bad("is https unless the hub is on this machine: a token must not travel in the clear")
	}
	return nil
}

// ParseFingerprint reads the SHA-256 of a hub's public key as hex, with or
// without colons and the prefix "sha256:", and returns it as the wire wants it.
func ParseFingerprint(s string) (string, error) {
	text := strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(strings.TrimSpace(s)), "sha256:"), ":", "")
	if !offpeak.Hash(text).Valid() {
		return "", &offpeak.FieldError{Field: "fingerprint", Value: s, Rule: "is the SHA-256 of the hub's public key: 64 hex digits"}
	}
	return text, nil
}
