package hub

import (
	"strings"
	"testing"

	"offpeak"
)

// Every reason for which a node does not take a job says what would help.
func TestEveryReasonHasARemedy(t *testing.T) {
	for _, code := range offpeak.FitCodes() {
		if text := remedy(offpeak.Reason{Code: code}); !strings.HasSuffix(text, ".") {
			t.Errorf("%s: %q", code, text)
		}
	}
	if text := remedy(offpeak.Reason{}); text != "" {
		t.Errorf("no reason: %q", text)
	}
}
