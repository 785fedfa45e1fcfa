package access

import (
	"fmt"
	"hash/crc32"
	"io"
	"math/big"
	"strings"

	"offpeak"
)

// A secret is what a bearer presents: offpeak_<kind>_<id>_<secret><check>. The
// id finds the token, the check tells a mistyped secret from a wrong one
// without asking the store, and the whole has a form that scanners can find.
const (
	kindUser    = "u"
	kindJoin    = "j"
	kindSession = "s"

	secretLen = 43 // 32 bytes in base 62
	checkLen  = 6  // 32 bits in base 62

	tokenPrefix = "tok_"
)

// newSecret draws a secret for a token and returns it with its secret part.
func (c *Control) newSecret(kind string, id offpeak.TokenID) (bearer, secret string, err error) {
	var b [32]byte
	if _, err := io.ReadFull(c.env.Random, b[:]); err != nil {
		return "", "", fmt.Errorf("draw secret: %w", err)
	}
	secret = base62(new(big.Int).SetBytes(b[:]), secretLen)
	front := "offpeak_" + kind + "_" + strings.TrimPrefix(string(id), tokenPrefix) + "_" + secret
	return front + checksum(front), secret, nil
}

func checksum(front string) string {
	return base62(new(big.Int).SetUint64(uint64(crc32.ChecksumIEEE([]byte(front)))), checkLen)
}

// base62 writes n in the digits 0-9, A-Z, a-z.
func base62(n *big.Int, width int) string {
	// Text orders a–z before A–Z; any fixed alphabet of 62 will do.
	s := n.Text(62)
	return strings.Repeat("0", max(0, width-len(s))) + s
}

// parseSecret takes a bearer secret apart. It returns ErrUnauthenticated for
// anything that is not one, saying so where it was mistyped.
func parseSecret(bearer string) (kind string, id offpeak.TokenID, secret string, err error) {
	rest, ok := strings.CutPrefix(bearer, "offpeak_")
	kind, rest, ok2 := strings.Cut(rest, "_")
	suffix, tail, ok3 := strings.Cut(rest, "_")
	if !ok || !ok2 || !ok3 || len(tail) != secretLen+checkLen || suffix == "" {
		return "", "", "", fmt.Errorf("not a token of a hub: %w", offpeak.ErrUnauthenticated)
	}
	cut := len(bearer) - checkLen
	if checksum(bearer[:cut]) != bearer[cut:] {
		return "", "", "", fmt.Errorf("the token is mistyped or cut off: %w", offpeak.ErrUnauthenticated)
	}
	return kind, offpeak.TokenID(tokenPrefix + suffix), tail[:secretLen], nil
}
