package offpeak

import "time"

// Device is a GPU or another accelerator of a node.
type Device struct {
	ID     DeviceID `json:"id" doc:"the vendor's UUID, or a PCI path where there is none"`
	Vendor string   `json:"vendor" doc:"nvidia, amd, intel or apple"`
	Model  string   `json:"model"`
	// VRAM is the memory a job can have, as it was measured: what is allocatable.
	// It decides what fits.
	VRAM Bytes `json:"vram_bytes" doc:"memory that a job can have"`
	// Total is all the memory that the device has, for people, where the agent
	// knows more than VRAM.
	Total Bytes `json:"total_bytes,omitempty" doc:"all its memory, of which some may be the driver's or the desktop's"`
	// Unified says that VRAM is the machine's main memory.
	Unified bool   `json:"unified,omitempty"`
	Driver  string `json:"driver,omitempty"`
	Compute string `json:"compute,omitempty" doc:"compute capability, as the vendor writes it"`
}

// Reading is what a device does now, as its node measured it. What a device does
// not tell is absent.
type Reading struct {
	Device DeviceID `json:"device"`
	// Used is memory in use by anybody, Others what of it is not a job's of the
	// grid: the desktop's, a game's, the driver's.
	Used        *Bytes   `json:"used_bytes,omitempty" doc:"memory in use, by anybody"`
	Others      *Bytes   `json:"used_by_others_bytes,omitempty" doc:"memory that no job of the grid uses: the desktop, games, the driver"`
	Temperature *int     `json:"temperature_celsius,omitempty"`
	Power       *int     `json:"power_watts,omitempty"`
	Utilisation *int     `json:"utilisation_percent,omitempty"`
	Throttled   []string `json:"throttled,omitempty" doc:"why it runs slower than it could: heat, power_cap, power_brake, hardware, other"`
}

// Inventory is what a node says it has.
type Inventory struct {
	Hostname string `json:"hostname"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
	CPUModel string `json:"cpu_model,omitempty"`
	// CPU, Memory and Disk are what the grid may use.
	CPU     int64    `json:"cpu_milli"`
	Memory  Bytes    `json:"memory_bytes"`
	Disk    Bytes    `json:"disk_bytes"`
	Devices []Device `json:"devices,omitempty"`
	// Drivers are the drivers that work on this machine.
	Drivers []string `json:"drivers"`
	// Shared are those of them that jobs of other accounts may use too. Without
	// it the node serves its own account only.
	Shared []string          `json:"shared_drivers,omitempty" doc:"drivers that jobs of other accounts may use too"`
	Region string            `json:"region,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	// Guests says whose jobs the owner takes. Nil is everybody's.
	Guests *Guests `json:"guests,omitempty"`
	// Opens is when the owner's hours next let the node work, said while it is in
	// use as outside_schedule.
	Opens *time.Time `json:"opens_at,omitempty" doc:"when the owner's hours next let it work"`
	// Fences says how jobs are fenced here, best first: "pid_namespace",
	// "cgroup_v2", "cgroup_v1", "subreaper", "process_group".
	Fences  []string `json:"fences,omitempty"`
	Version string   `json:"agent_version"`
	// Warnings are what the owner should know, for example that limits are not
	// enforced or that a GPU tool does not answer.
	Warnings []string `json:"warnings,omitempty"`
}

// Node is one enrolled device, with a key of its own.
type Node struct {
	ID      NodeID    `json:"id"`
	Account AccountID `json:"account"`
	Name    string    `json:"name"`
	// Key is the node's Ed25519 public key.
	Key []byte `json:"-"`
	// Liveness is measured by hubs; Intent is ordered by a person; Availability
	// and Why are said by the agent.
	Liveness     Liveness     `json:"liveness"`
	Intent       Intent       `json:"intent"`
	Availability Availability `json:"availability"`
	Why          EndReason    `json:"why,omitempty" doc:"why it is in use"`
	Inventory    Inventory    `json:"inventory"`
	// Readings are what its devices did when the agent last said so: it says so
	// when it changes by more than a little.
	Readings []Reading `json:"readings,omitempty" doc:"what its devices did when last heard of; told when it changes by more than a little"`
	// Capacity is what may be leased: the least of claimed and proven. Reserved
	// is what live leases hold; the store keeps it equal to their sum.
	Capacity Resources `json:"capacity"`
	Reserved Resources `json:"reserved"`
	// Quarantine is set while it gets no work, or one job at a time, since jobs died
	// there by its fault.
	Quarantine *Quarantine `json:"quarantine,omitempty"`
	// Ask is what its owner asks now. Nil: nothing is asked, so it takes no job.
	Ask *Ask `json:"ask"`
	// Revision grows with every change to what the node should hold.
	Revision int64 `json:"revision"`
	// Generation grows with every session; two holders of one key collide on it.
	Generation  int64       `json:"generation"`
	Incarnation Incarnation `json:"incarnation,omitempty"`
	// Timeout is the silence after which a lease granted now will expire.
	Timeout    Duration   `json:"timeout"`
	LastHeard  *time.Time `json:"last_heard_at,omitempty"`
	EnrolledAt time.Time  `json:"enrolled_at"`
	// Measured is put in by the hub that answers; the store keeps none of it. Nil:
	// nothing is known.
	Measured *Measured `json:"measured,omitempty" doc:"what the hub that answers measured of it; absent while too little is known"`
}

// Measured is what a hub reckons from a node's past.
type Measured struct {
	// Reliability and Return are nil while too little is known to tell.
	Reliability *float64  `json:"reliability,omitempty" doc:"share of its leases, 0 to 1, that it is expected to keep until they end by themselves"`
	Return      *Duration `json:"expected_return,omitempty" doc:"expected time until it is wanted back or falls silent, while it is available"`
}
