package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/time/rate"

	"offpeak"
	"offpeak/agent"
	"offpeak/agent/driver"
	"offpeak/agent/driver/process"
	"offpeak/agent/egress"
	"offpeak/agent/supervisor"
)

// network is what the owner says of the network of jobs.
type network struct {
	allow          []string
	rate, total    string
	processNetwork string
}

func (n *network) flags(f *pflag.FlagSet) {
	f.StringSliceVar(&n.allow, "allow-egress", []string{"none"}, "what jobs may reach of the network, if they ask for it: none, any (every public host), or `hosts` like pypi.org:443,*.huggingface.co:443; never this machine or its network")
	f.StringVar(&n.rate, "egress-rate", "10MB", "`size` that all jobs together may move a second; 0 for no bound")
	f.StringVar(&n.total, "egress-total", "50GB", "`size` that one job may move; 0 for no bound")
	f.StringVar(&n.processNetwork, "process-network", "auto", "`network` of process jobs without egress: none (loopback alone), host (this machine's), or auto (none where it can be had)")
}

// hosts are what the owner allows, nil for nothing.
func (n *network) hosts() []string {
	if len(n.allow) == 0 || slices.Equal(n.allow, []string{"none"}) {
		return nil
	}
	return n.allow
}

func (n *network) validate() error {
	if err := (&offpeak.Egress{Hosts: n.hosts()}).Validate("--allow-egress"); err != nil {
		return badInput("%w", err)
	}
	for flag, text := range map[string]string{"egress-rate": n.rate, "egress-total": n.total} {
		if _, err := bound(text); err != nil {
			return badInput("--%s: %w", flag, err)
		}
	}
	if !slices.Contains([]string{"", "auto", "none", "host"}, n.processNetwork) {
		return badInput("--process-network: %q: is auto, none or host", n.processNetwork)
	}
	return nil
}

// bound reads a size, of which 0 is no bound.
func bound(text string) (offpeak.Bytes, error) {
	if text == "0" || text == "" {
		return 0, nil
	}
	return offpeak.ParseBytes(text)
}

// process is the process driver with the network that the owner wants for its jobs,
// and what the owner should know of that.
func (n *network) process(exe string, found supervisor.Found) (d process.Driver, warning string) {
	d = process.Driver{Exe: exe, NoNetwork: n.processNetwork != "host", Alone: found.NoNetwork, Closed: func() []string {
		var out []string
		for _, a := range egress.Around() {
			out = append(out, a.String())
		}
		return out
	}}
	if d.NoNetwork && found.NoNetwork != nil && n.processNetwork != "none" {
		d.NoNetwork = false
		return d, "process jobs share this machine's network: " + found.NoNetwork.Error()
	}
	return d, ""
}

// outlet is the way of jobs to the network, as the owner allows it and as it was
// tried.
type outlet struct {
	proxy *egress.Proxy
	offer *offpeak.Egress
	// words say it to the owner; refused says that it was wanted and can't be had.
	words   string
	refused bool
}

// open makes the way of jobs to the network and tries it: no job gets it before the
// fence was seen to hold.
func (n *network) open(ctx context.Context, cfg agent.Config, exe string, drivers []driver.Driver, log *slog.Logger) outlet {
	hosts := n.hosts()
	if hosts == nil {
		return outlet{words: "none"}
	}
	fail := func(err error) outlet {
		log.Warn("jobs get no network", "error", err)
		return outlet{words: "none, though you allow " + strings.Join(hosts, ", ") + ": " + err.Error(), refused: true}
	}
	total, _ := bound(n.total)
	perSecond, _ := bound(n.rate)
	var limit *rate.Limiter
	if perSecond > 0 {
		limit = rate.NewLimiter(rate.Limit(perSecond), max(int(perSecond/10), egress.Burst))
	}
	p, err := egress.New(egress.Config{Folder: filepath.Join(cfg.Data, "egress"), Hosts: hosts, Rate: limit, Total: total, Log: log})
	if err != nil {
		return fail(err)
	}
	if err := p.Verify(ctx); err != nil {
		return fail(err)
	}
	offer := &offpeak.Egress{Hosts: hosts}
	var without []string
	for _, d := range drivers {
		if err := tryEgress(ctx, cfg, exe, p, d); err == nil {
			offer.Drivers = append(offer.Drivers, d.Name())
		} else if !errors.Is(err, errNoEgress) {
			without = append(without, fmt.Sprintf("%s: %v", d.Name(), err))
		}
	}
	if len(offer.Drivers) == 0 {
		return fail(errors.New(strings.Join(append([]string{"no driver can fence its jobs off"}, without...), "; ")))
	}
	words := strings.Join(hosts, ", ") + " for jobs of " + strings.Join(offer.Drivers, ", ")
	if len(without) > 0 {
		words += "; not for " + strings.Join(without, "; ")
	}
	return outlet{proxy: p, offer: offer, words: words}
}

// try says why jobs would get no network though the owner allows it.
func (n *network) try(ctx context.Context, cfg agent.Config, log *slog.Logger) error {
	if n.hosts() == nil {
		return nil
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own binary: %w", err)
	}
	found, err := findFences(ctx, cfg, log)
	if err != nil {
		return err
	}
	d, _ := n.process(exe, found)
	if out := n.open(ctx, cfg, exe, []driver.Driver{d}, log); out.refused {
		return errors.New(out.words)
	}
	return nil
}

var errNoEgress = errors.New("it gives its jobs no network")

// tryEgress has a driver start a job with egress, which looks whether it has any
// other way out.
func tryEgress(ctx context.Context, cfg agent.Config, exe string, p *egress.Proxy, d driver.Driver) error {
	r, ok := d.(driver.Reacher)
	if !ok {
		return errNoEgress
	}
	if err := r.Reaches(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	gate, err := p.Open("probe", "", nil)
	if err != nil {
		return err
	}
	defer gate.Close()
	dir, err := os.MkdirTemp(cfg.Data, "probe-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	work := filepath.Join(dir, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	c, err := d.Command(driver.Task{
		Task: offpeak.Task{Driver: d.Name(), Command: []string{"true"}}, Work: work, Cache: filepath.Join(cfg.Data, "cache"),
		Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin"}, Memory: offpeak.GiB, Egress: gate.Path(),
	})
	if err != nil {
		return err
	}
	x, err := supervisor.Try(ctx, exe, dir, c)
	if err == nil && x.Reason != offpeak.EndCompleted {
		err = fmt.Errorf("a trial ended as %s: %s", x.Reason, x.Detail)
	}
	return err
}
