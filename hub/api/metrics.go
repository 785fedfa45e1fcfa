package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"offpeak/hub"
)

// metrics is what is told to Prometheus: of the API in a registry of its own, so
// that two hubs in one process do not meet, and of the hub in the hub's.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	streams  *prometheus.GaugeVec
	handler  http.Handler
}

func newMetrics(h *hub.Hub) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "offpeak_http_requests_total", Help: "Requests by route and status.",
		}, []string{"route", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "offpeak_http_request_seconds", Help: "Time from a request's header to the end of its answer, streams left out.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60},
		}, []string{"route"}),
		streams: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "offpeak_streams_open", Help: "Open streams by kind.",
		}, []string{"kind"}),
	}
	r := prometheus.NewRegistry()
	r.MustRegister(m.requests, m.seconds, m.streams,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = promhttp.HandlerFor(prometheus.Gatherers{r, h.Metrics()}, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	return m
}

func (m *metrics) serve(w http.ResponseWriter, r *http.Request, _ *caller) error {
	m.handler.ServeHTTP(w, r)
	return nil
}

// open counts a stream in, and out when the returned function is called.
func (m *metrics) open(kind string) (closed func()) {
	g := m.streams.WithLabelValues(kind)
	g.Inc()
	return g.Dec
}

// routeMetrics is what is counted of one route, looked up once.
type routeMetrics struct {
	all     *metrics
	route   string
	good    prometheus.Counter
	goodFor int
	seconds prometheus.Observer // nil for streams
}

func (m *metrics) route(rt *route) *routeMetrics {
	name := rt.method + " " + rt.path
	good := rt.status
	if good == 0 {
		good = http.StatusOK
	}
	s := &routeMetrics{all: m, route: name, goodFor: good, good: m.requests.WithLabelValues(name, strconv.Itoa(good))}
	if !rt.stream {
		s.seconds = m.seconds.WithLabelValues(name)
	}
	return s
}

func (s *routeMetrics) done(status int, took time.Duration) {
	if status == 0 {
		status = http.StatusOK
	}
	if status == s.goodFor {
		s.good.Inc()
	} else {
		s.all.requests.WithLabelValues(s.route, strconv.Itoa(status)).Inc()
	}
	if s.seconds != nil {
		s.seconds.Observe(took.Seconds())
	}
}
