package offpeak

import "time"

// Hub is one run of a hub process, as the hubs of its grid see it.
type Hub struct {
	ID HubID `json:"id"`
	// Addresses are where agents and people reach it.
	Addresses []string `json:"addresses"`
	Version   string   `json:"version"`
	// Fingerprint is that of the key by which it is known; "" on loopback.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Blobs says where it keeps blobs: all hubs of a grid in one place.
	Blobs string `json:"blobs"`
	// BlobsAt is how its keeper names that place; "" for its data folder.
	BlobsAt   string    `json:"-"`
	StartedAt time.Time `json:"started_at"`
	// SeenAt is when it last said that it is at work.
	SeenAt time.Time `json:"seen_at"`
	// Leads says that it matches.
	Leads bool `json:"leads"`
}
