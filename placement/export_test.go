package placement

import "fmt"

// CheckIndex says what of the index is not as the nodes are.
func (f *Fleet) CheckIndex() error {
	for _, v := range f.views {
		if v == nil {
			continue
		}
		seen := 0
		for i := range v.heads {
			h := &v.heads[i]
			g := h.group
			if h.order != g.sums[0].order || h.price != g.sums[0].price || g.index != i || v.groups[g.key] != g || len(g.blocks) != len(g.sums) || len(g.blocks) == 0 {
				return fmt.Errorf("group %d of view %d is not where it is", i, v.order)
			}
			var last row
			for at, b := range g.blocks {
				if b.group != g || b.n == 0 || b.sum() != g.sums[at] {
					return fmt.Errorf("block %d of group %d of view %d is not summed up", at, i, v.order)
				}
				for k := range b.n {
					r := b.row(k)
					if r != v.row(f, r.node) || r.node.blocks[v.order] != b || !v.admits(r.node) {
						return fmt.Errorf("view %d has %s as it was", v.order, r.node.offer.Node)
					}
					if r.cpu < h.leastCPU || r.memory < h.leastMem {
						return fmt.Errorf("view %d: %s has less free than its group", v.order, r.node.offer.Node)
					}
					if last.node != nil && last.compare(&r) >= 0 {
						return fmt.Errorf("view %d: %s is out of order", v.order, r.node.offer.Node)
					}
					last = r
					seen++
				}
			}
		}
		for _, n := range f.nodes {
			if v.admits(n) != (n.blocks[v.order] != nil) {
				return fmt.Errorf("view %d lacks or has %s", v.order, n.offer.Node)
			}
			if v.admits(n) {
				seen--
			}
		}
		if seen != 0 {
			return fmt.Errorf("view %d has %d nodes too many", v.order, seen)
		}
	}
	sets := 0
	for _, s := range f.devices.uniform {
		sets += s.refs
	}
	for _, s := range f.devices.mixed {
		sets += s.refs
	}
	for _, n := range f.nodes {
		if n.set != nil {
			sets--
		}
	}
	if sets != 0 {
		return fmt.Errorf("device sets have %d users too many", sets)
	}
	return nil
}
