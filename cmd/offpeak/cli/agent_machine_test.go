package cli

import (
	"slices"
	"testing"

	"offpeak"
)

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
