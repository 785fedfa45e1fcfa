package hub

import (
	"strings"
	"testing"

	"offpeak"
)

// Every reason for which a node does not take a job says what would help.
func TestEveryReasonHasARemedy(t *testing.T) {
	for _, code := range []offpeak.FitCode{
		offpeak.FitDriver, offpeak.FitOS, offpeak.FitArch, offpeak.FitLabel, offpeak.FitTrust, offpeak.FitStranger, offpeak.FitPrice,
		offpeak.FitVRAM, offpeak.FitGPU, offpeak.FitCPU, offpeak.FitMemory, offpeak.FitDisk,
		offpeak.FitOffline, offpeak.FitDraining, offpeak.FitClosed, offpeak.FitInUse,
		offpeak.FitBusyGPU, offpeak.FitBusyCPU, offpeak.FitBusyMemory, offpeak.FitBusyDisk, offpeak.FitFence,
	} {
		if text := remedy(offpeak.Reason{Code: code}); !strings.HasSuffix(text, ".") {
			t.Errorf("%s: %q", code, text)
		}
	}
	if text := remedy(offpeak.Reason{}); text != "" {
		t.Errorf("no reason: %q", text)
	}
}
