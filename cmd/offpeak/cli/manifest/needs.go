package manifest

import (
	"fmt"
	"strings"

	"offpeak"
)

// gpus are GPUs that are named one by one, each SIZE[:VENDOR[:MODEL]].
type gpus []offpeak.GPURequest

// Set implements pflag.Value.
func (g *gpus) Set(text string) error {
	parts := strings.SplitN(text, ":", 3)
	vram, err := offpeak.ParseBytes(parts[0])
	if err != nil {
		return err
	}
	w := offpeak.GPURequest{VRAM: vram}
	for i, into := range []*string{&w.Vendor, &w.Model} {
		if len(parts) <= i+1 {
			break
		}
		if strings.Contains(parts[i+1], ":") {
			return &offpeak.ValueError{Value: text, Rule: "is SIZE[:VENDOR[:MODEL]], for example 24GB, 24GB:nvidia or 24GB:nvidia:RTX"}
		}
		// Of the two the vendor may be left out, as in 24GB::RTX.
		if *into = parts[i+1]; *into == "" && i+2 >= len(parts) {
			return &offpeak.ValueError{Value: text, Rule: "is SIZE[:VENDOR[:MODEL]], for example 24GB, 24GB:nvidia or 24GB:nvidia:RTX"}
		}
	}
	*g = append(*g, w)
	return nil
}

// String implements pflag.Value.
func (g *gpus) String() string { return "" }

// Type implements pflag.Value.
func (g *gpus) Type() string { return "gpu" }

// described says that a flag describes every GPU of the job, so that there is
// one at least.
func (s *Flags) described() bool {
	for _, name := range []string{"gpu-vendor", "gpu-model", "gpu-kind", "compute-capability", "gpu-driver"} {
		if s.set.Changed(name) {
			return true
		}
	}
	return false
}

// describe puts what is said of every GPU into the requests.
func (s *Flags) describe(of []offpeak.GPURequest) error {
	for name, text := range map[string]string{"gpu-kind": s.gpuKind, "compute-capability": s.compute, "gpu-driver": s.gpuDriver} {
		if s.set.Changed(name) && text == "" {
			return &offpeak.FieldError{Field: "--" + name, Rule: "says something; leave it out to ask for nothing"}
		}
	}
	named := s.set.Changed("gpu")
	for i := range of {
		w := &of[i]
		over := func(name string, into *string, text string) {
			if s.set.Changed(name) && (!named || *into == "") {
				*into = text
			}
		}
		over("gpu-vendor", &w.Vendor, s.gpuVendor)
		over("gpu-model", &w.Model, s.gpuModel)
		over("compute-capability", &w.Compute, s.compute)
		over("gpu-driver", &w.Driver, s.gpuDriver)
		if s.set.Changed("gpu-kind") {
			w.Kind = offpeak.GPUKind(s.gpuKind)
		}
	}
	return nil
}

// placed puts into requirements where the job may run: labels, and the nodes and
// accounts whose ids are given. Names of nodes are left to Resolve.
func (s *Flags) placed(r *offpeak.Requirements) error {
	var pairs, match []string
	for _, text := range s.where {
		for part := range strings.SplitSeq(text, ",") {
			k, v, valued := strings.Cut(strings.TrimSpace(part), "=")
			k, not := strings.CutSuffix(strings.TrimSpace(k), "!")
			if v = strings.TrimSpace(v); not && !valued || k == "" || k == "!" || valued && (v == "" || k[0] == '!') {
				return &offpeak.FieldError{Field: "--where", Value: text, Rule: "is conditions with commas between, each k=v, k!=v, k or !k"}
			}
			switch k = strings.TrimSpace(k); {
			case not:
				match = append(match, k+"!="+v)
			case valued:
				pairs = append(pairs, k+"="+v)
			default:
				match = append(match, k)
			}
		}
	}
	var err error
	if r.Where, err = Pairs("--where", r.Where, pairs); err != nil {
		return err
	}
	r.Match = append(r.Match[:len(r.Match):len(r.Match)], match...)
	for _, l := range []struct {
		name string
		from []string
		into *[]offpeak.NodeID
	}{{"node", s.nodes, &r.Nodes}, {"not-node", s.notNodes, &r.NotNodes}} {
		if !s.set.Changed(l.name) {
			continue
		}
		*l.into = nil
		for _, ref := range l.from {
			switch {
			case ref == "":
				return &offpeak.FieldError{Field: "--" + l.name, Rule: "names a node by its id or name"}
			case isNodeID(ref):
				*l.into = append(*l.into, offpeak.NodeID(ref))
			}
		}
	}
	if s.set.Changed("egress") {
		r.Egress = nil
		for _, host := range s.egress {
			if host != "" {
				r.Egress = append(r.Egress, host)
			}
		}
	}
	if s.set.Changed("not-account") {
		r.NotAccounts = nil
		for _, id := range s.notAccounts {
			r.NotAccounts = append(r.NotAccounts, offpeak.AccountID(id))
		}
	}
	return nil
}

func isNodeID(ref string) bool { return strings.HasPrefix(ref, "node_") }

// Resolve puts the nodes into spec that flags call by their names. find asks the
// hub; it is not called where there are none.
func (s *Flags) Resolve(spec offpeak.Spec, find func(ref string) (offpeak.NodeID, error)) (offpeak.Spec, error) {
	r := &spec.Requirements
	for _, l := range []struct {
		name string
		from []string
		into *[]offpeak.NodeID
	}{{"node", s.nodes, &r.Nodes}, {"not-node", s.notNodes, &r.NotNodes}} {
		for _, ref := range l.from {
			if isNodeID(ref) {
				continue
			}
			id, err := find(ref)
			if err != nil {
				return spec, fmt.Errorf("--%s: %w", l.name, err)
			}
			*l.into = append(*l.into, id)
		}
	}
	return spec, spec.WithDefaults().Validate()
}
