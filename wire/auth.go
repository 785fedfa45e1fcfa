package wire

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"offpeak"
)

// joinPrefix stands before the text of a join token, so that secret scanners
// and people know it.
const joinPrefix = "offpeak_join_"

// SessionMessage is what a node signs to open a session.
func SessionMessage(challenge string, node offpeak.NodeID, incarnation offpeak.Incarnation, generation int64) []byte {
	return []byte("offpeak session v1\n" + challenge + "\n" + string(node) + "\n" + string(incarnation) + "\n" + strconv.FormatInt(generation, 10))
}

// Encode returns the text that an owner copies to a new machine.
func (j JoinToken) Encode() (string, error) {
	data, err := json.Marshal(j)
	if err != nil {
		return "", fmt.Errorf("encode join token: %w", err)
	}
	return joinPrefix + base64.RawURLEncoding.EncodeToString(data), nil
}

// DecodeJoinToken reads what Encode returned. It returns a *offpeak.FieldError
// for anything else; the text itself is secret and not repeated in it.
func DecodeJoinToken(text string) (JoinToken, error) {
	broken := &offpeak.FieldError{Field: "token", Rule: "is the whole text that `offpeak token join` printed, beginning with " + joinPrefix}
	body, ok := strings.CutPrefix(strings.TrimSpace(text), joinPrefix)
	if !ok {
		return JoinToken{}, broken
	}
	data, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil {
		return JoinToken{}, broken
	}
	var j JoinToken
	if err := json.Unmarshal(data, &j); err != nil || len(j.Hubs) == 0 || j.Token == "" {
		return JoinToken{}, broken
	}
	return j, nil
}
