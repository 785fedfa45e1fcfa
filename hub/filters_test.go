package hub_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"offpeak"
	"offpeak/hub"
	"offpeak/wire"
)

// Each filter that can be lifted while a job waits: explain names it before, and
// the job starts at once after.
func TestLiftedFiltersLetTheJobGo(t *testing.T) {
	inventory := func(cpu int64) offpeak.Inventory {
		return offpeak.Inventory{
			OS: "linux", Arch: "amd64", CPU: cpu, Memory: 8 * offpeak.GiB, Disk: 64 * offpeak.GiB,
			Drivers: []string{"process"}, Shared: []string{"process"},
		}
	}
	opens := time.Date(2030, 1, 1, 23, 0, 0, 0, time.UTC)
	card := offpeak.Device{ID: "GPU-1", Vendor: "nvidia", Model: "RTX", VRAM: 24564 * offpeak.MiB, Compute: "8.9", Driver: "470.1"}
	for _, c := range []struct {
		code offpeak.FitCode
		job  func(*offpeak.Requirements)
		// before and after change what the node has.
		before, after func(*offpeak.Inventory)
		why           offpeak.EndReason
		says          string
	}{
		{offpeak.FitLabel, func(r *offpeak.Requirements) { r.Match = []string{"!metered"} }, func(i *offpeak.Inventory) { i.Labels = map[string]string{"metered": "yes"} }, nil, "", "wants !metered, has metered=yes"},
		{offpeak.FitVRAM, func(r *offpeak.Requirements) { r.GPUs = []offpeak.GPURequest{{VRAM: 24 * offpeak.GiB}} }, nil, func(i *offpeak.Inventory) { i.Devices = []offpeak.Device{card} }, "", "wants 1 GPU with 24GiB, has no GPU"},
		{offpeak.FitGPUDriver, func(r *offpeak.Requirements) { r.GPUs = []offpeak.GPURequest{{Driver: "470"}} }, func(i *offpeak.Inventory) {
			old := card
			old.Driver = "390.1"
			i.Devices = []offpeak.Device{old}
		}, func(i *offpeak.Inventory) { i.Devices = []offpeak.Device{card} }, "", "wants GPU driver 470, has 390.1 on RTX"},
		{offpeak.FitEgress, func(r *offpeak.Requirements) { r.Egress = []string{"files.example:443", "www.lab.example:80"} }, func(i *offpeak.Inventory) {
			i.Egress = &offpeak.Egress{Hosts: []string{"files.example:443"}, Drivers: []string{"process"}}
		}, func(i *offpeak.Inventory) {
			i.Egress = &offpeak.Egress{Hosts: []string{"*.lab.example:80", "files.example:443"}, Drivers: []string{"process"}}
		}, "", "wants files.example:443, www.lab.example:80, has only files.example:443"},
		{offpeak.FitWindow, nil, func(i *offpeak.Inventory) { i.Opens = &opens }, nil, offpeak.EndOutsideSchedule, "opens at 2030-01-01 23:00 UTC. Its owner's hours are closed"},
	} {
		t.Run(string(c.code), func(t *testing.T) {
			bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
				a := g.join("one")
				inv := inventory(1000)
				if c.before != nil {
					c.before(&inv)
				}
				must(t, g.hub.SetInventory(t.Context(), a.id, inv))
				beat := func(why offpeak.EndReason) {
					hb := a.heartbeat()
					if hb.Why = why; why != "" {
						hb.Availability = offpeak.NodeInUse
					}
					_, err := g.hub.Heartbeat(t.Context(), a.id, hb)
					must(t, err)
					a.ack = time.Now()
				}
				beat(c.why)
				spec := small()
				if c.job != nil {
					c.job(&spec.Requirements)
				}
				id := g.submit(spec)
				synctest.Wait()
				e, err := g.hub.Explain(t.Context(), g.account, id)
				must(t, err)
				if len(e.Causes) != 1 || e.Causes[0].Code != c.code || !strings.Contains(e.Summary, c.says) {
					t.Fatalf("explained by %+v", e)
				}
				inv = inventory(1000)
				if c.after != nil {
					c.after(&inv)
				}
				must(t, g.hub.SetInventory(t.Context(), a.id, inv))
				beat("")
				if d := a.offered(); d.Job != id {
					t.Fatalf("offered %s", d.Job)
				}
			})
		})
	}
}

// What a job's account lacks is a cause with a code, beside those of the nodes.
func TestQuotaIsACause(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		_, err := g.store.SetQuota(t.Context(), g.op(), g.account, offpeak.Quota{Running: 1})
		must(t, err)
		a := g.joinWith("one", 4000)
		g.submit(small())
		a.offered()
		id := g.submit(small())
		synctest.Wait()
		e, err := g.hub.Explain(t.Context(), g.account, id)
		must(t, err)
		if len(e.Causes) != 1 || e.Causes[0].Code != offpeak.FitQuota || e.Causes[0].Nodes != 1 {
			t.Fatalf("explained by %+v", e)
		}
	})
}

// What no machine has and no owner can mean is refused, each with its field.
func TestInventoryIsChecked(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, g *grid) {
		a := g.join("one")
		err := g.hub.SetInventory(t.Context(), a.id, offpeak.Inventory{
			Devices: []offpeak.Device{{ID: "GPU-1", VRAM: 25 * offpeak.GiB, Total: 24 * offpeak.GiB}},
			Guests:  &offpeak.Guests{Allow: []offpeak.AccountID{"lab"}, Deny: make([]offpeak.AccountID, 1025)},
		})
		got := map[string]bool{}
		for _, f := range wire.ProblemOf(err).Errors {
			got[f.Location] = true
		}
		for _, field := range []string{"inventory.devices[0].vram_bytes", "inventory.guests.allow[0]", "inventory.guests.deny"} {
			if !got[field] {
				t.Errorf("%s was taken: %v", field, err)
			}
		}
	})
}
