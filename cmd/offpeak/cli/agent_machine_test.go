package cli

import (
	"context"
	"slices"
	"testing"

	"offpeak"
)

// TestOwnersDiskHolds: what was measured first stays, but the owner's word is last.
func TestOwnersDiskHolds(t *testing.T) {
	free := 100 * offpeak.GiB
	look := func(context.Context) (offpeak.Inventory, error) { return offpeak.Inventory{Disk: free, CPU: 8000}, nil }
	for _, tt := range []struct {
		flag string
		want offpeak.Bytes
	}{{"20GiB", 20 * offpeak.GiB}, {"", 90 * offpeak.GiB}} {
		m := machine{disk: tt.flag, gpus: "all"}
		free = 100 * offpeak.GiB
		probe := m.offered(steadyDisk(t.TempDir(), look))
		for range 2 {
			inv, err := probe(t.Context())
			if err != nil || inv.Disk != tt.want || inv.CPU != 8000 {
				t.Errorf("--disk %q with %s free offers %s, want %s (%v)", tt.flag, free, inv.Disk, tt.want, err)
			}
			free = 50 * offpeak.GiB // jobs write meanwhile
		}
	}
}

// What strangers may run is what fences their jobs in, unless the owner lets
// any job in.
func TestAccept(t *testing.T) {
	for accept, want := range map[string][]string{"own": {"wasm"}, "any": {"process", "wasm"}} {
		m := machine{accept: accept, gpus: "all"}
		if err := m.validate(); err != nil {
			t.Fatal(err)
		}
		have := offpeak.Inventory{Drivers: []string{"process", "wasm"}}
		got := m.limit(have)
		if !slices.Equal(got.Shared, want) || !slices.Equal(got.Drivers, []string{"process", "wasm"}) {
			t.Errorf("%s: of %v shares %v, want %v", accept, got.Drivers, got.Shared, want)
		}
		if !slices.Equal(have.Drivers, []string{"process", "wasm"}) {
			t.Errorf("%s: changed what it was given to %v", accept, have.Drivers)
		}
	}
	if err := (&machine{accept: "friends", gpus: "all"}).validate(); err == nil {
		t.Error("--accept friends is taken")
	}
}
