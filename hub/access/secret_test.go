package access

import "testing"

func TestSecrets(t *testing.T) {
	c := &Control{env: Env{Random: zeros{}}}
	bearer, secret, err := c.newSecret(kindUser, "tok_01abc")
	if err != nil {
		t.Fatal(err)
	}
	kind, id, got, err := parseSecret(bearer)
	if err != nil || kind != kindUser || id != "tok_01abc" || got != secret || len(secret) != secretLen {
		t.Fatalf("parsed %q %q %q (%v)", kind, id, got, err)
	}
	for i := range bearer {
		broken := []byte(bearer)
		broken[i] ^= 1
		if _, _, _, err := parseSecret(string(broken)); err == nil {
			t.Fatalf("a change at %d was not noticed", i)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
