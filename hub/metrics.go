package hub

import (
	"github.com/prometheus/client_golang/prometheus"

	"offpeak"
	"offpeak/store"
	"offpeak/wire"
)

// metrics are the hub's own, in a registry of their own.
type metrics struct {
	registry *prometheus.Registry

	submitted, claims, conflicts, beats, expired, amnesties, brakes prometheus.Counter

	batch, beatBatch prometheus.Histogram
	reports          *prometheus.CounterVec
	jobs, money      *prometheus.GaugeVec
}

func newMetrics(h *Hub) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "offpeak", Name: name, Help: help})
		m.registry.MustRegister(c)
		return c
	}
	m.submitted = counter("jobs_submitted_total", "Jobs accepted.")
	m.claims = counter("claims_total", "Leases offered.")
	m.conflicts = counter("claim_conflicts_total", "Claims that lost a race and were matched again.")
	m.beats = counter("heartbeats_total", "Heartbeats received.")
	m.expired = counter("leases_expired_total", "Leases taken back after silence.")
	m.amnesties = counter("amnesties_total", "Times at which everyone was given a full timeout anew.")
	m.brakes = counter("mass_silences_total", "Times at which most nodes fell silent at once and leases were held back.")
	sizes := prometheus.ExponentialBuckets(1, 2, 10)
	m.batch = prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "offpeak", Name: "claim_batch_size", Help: "Claims that shared a commit.", Buckets: sizes})
	m.beatBatch = prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "offpeak", Name: "heartbeat_batch_size", Help: "Heartbeats that shared a commit.", Buckets: sizes})
	m.reports = prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "offpeak", Name: "reports_total", Help: "Reports applied, by kind."}, []string{"kind"})
	m.jobs = prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "offpeak", Name: "jobs", Help: "Jobs by state, as last counted (every 30 s)."}, []string{"state"})
	m.money = prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "offpeak", Name: "ledger_credits", Help: "Sums of the ledger in credits, as last read (every 30 s)."}, []string{"part"})
	m.registry.MustRegister(m.batch, m.beatBatch, m.reports, m.jobs, m.money)
	gauge := func(name, help string, read func() float64) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "offpeak", Name: name, Help: help}, read))
	}
	gauge("queue_depth", "Jobs in the queue in memory.", func() float64 {
		h.mu.Lock()
		defer h.mu.Unlock()
		return float64(h.queue.size())
	})
	gauge("queue_classes_parked", "Kinds of requirements that no node fits now.", func() float64 {
		h.mu.Lock()
		defer h.mu.Unlock()
		return float64(h.queue.Parked())
	})
	for _, l := range offpeak.Livenesses() {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "offpeak", Name: "nodes", Help: "Nodes by liveness.", ConstLabels: prometheus.Labels{"liveness": string(l)},
		}, func() float64 {
			n := 0
			h.peers.all(func(p *peer) {
				if p.liveness == l {
					n++
				}
			})
			return float64(n)
		}))
	}
	gauge("event_cursor", "The newest event's cursor.", func() float64 {
		h.tail.mu.Lock()
		defer h.tail.mu.Unlock()
		return float64(h.tail.last)
	})
	if s, ok := h.env.Store.(store.Counted); ok {
		m.commits(s)
	}
	return m
}

// commits shows how a store groups what it writes.
func (m *metrics) commits(s store.Counted) {
	counter := func(name, help string, read func(store.Stats) float64) {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "offpeak", Name: name, Help: help},
			func() float64 { return read(s.Stats()) }))
	}
	counter("store_commits_total", "Transactions that the store committed.", func(s store.Stats) float64 { return float64(s.Commits) })
	counter("store_verbs_total", "Changes that they held; by store_commits_total, how many shared a commit.", func(s store.Stats) float64 { return float64(s.Verbs) })
	counter("store_commit_seconds_total", "Time spent in commits, which includes the disk's.", func(s store.Stats) float64 { return s.Committing.Seconds() })
	counter("store_failures_total", "Transactions that failed, after which the store opened its file anew.", func(s store.Stats) float64 { return float64(s.Failures) })
}

// counted takes a count of jobs by state.
func (m *metrics) counted(counts map[offpeak.JobState]int) {
	for _, s := range offpeak.JobStates() {
		m.jobs.WithLabelValues(string(s)).Set(float64(counts[s]))
	}
}

// summed takes the sums of the ledger.
func (m *metrics) summed(b wire.GridBalance) {
	for part, n := range map[string]offpeak.MicroCredits{
		"deposits": b.Deposits, "payouts": b.Payouts, "available": b.Available, "held": b.Held, "fee": b.Fee, "rounding": b.Rounding,
	} {
		m.money.WithLabelValues(part).Set(float64(n) / float64(offpeak.Credit))
	}
}

// Metrics is the registry of the hub's metrics.
func (h *Hub) Metrics() *prometheus.Registry { return h.metrics.registry }
