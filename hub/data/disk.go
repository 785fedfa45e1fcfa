package data

import (
	"fmt"

	"offpeak"
)

// diskAlarm warns, diskFull refuses what would fill the disk further.
const (
	diskAlarm = 0.85
	diskFull  = 0.97
)

// share is how full the hub's disk is, 0 to 1; 0 where unknown.
func (v *Vault) share() float64 { return float64(v.used.Load()) / 1e6 }

// fullest is how full the fullest of the folders' file systems is.
func fullest(folders []string) (used float64) {
	for _, f := range folders {
		used = max(used, diskUsed(f))
	}
	return used
}

// Full returns ErrStorage while so little is left that what is accepted
// already may not be able to finish.
func (v *Vault) Full() error {
	if s := v.share(); s >= diskFull {
		return fmt.Errorf("the hub's disk is %.0f %% full: %w", s*100, offpeak.ErrStorage)
	}
	return nil
}

// Warnings say in sentences what a person should know of the disk.
func (v *Vault) Warnings() []string {
	s := v.share()
	switch {
	case s >= diskFull:
		return []string{fmt.Sprintf("The hub's disk is %.1f %% full: uploads and submissions are refused until space is freed.", s*100)}
	case s >= diskAlarm:
		return []string{fmt.Sprintf("The hub's disk is %.1f %% full: free space or shorten the retention; at 97 %% uploads and submissions are refused.", s*100)}
	}
	return nil
}

// lookAtDisk reads how full the disk is and logs each threshold that it passed
// once, until there is enough room again. said and what it returns are the
// highest threshold that was logged.
func (v *Vault) lookAtDisk(said float64) float64 {
	share := v.env.Disk()
	v.used.Store(int64(share * 1e6))
	used := fmt.Sprintf("%.1f %%", share*100)
	switch {
	case share < diskAlarm:
		return 0
	case share >= diskFull && said < diskFull:
		if said < diskAlarm {
			v.env.Log.Warn("the disk fills up", "folder", v.cfg.Folder, "used", used)
		}
		v.env.Log.Error("the disk is full", "folder", v.cfg.Folder, "used", used)
		return diskFull
	case said < diskAlarm:
		v.env.Log.Warn("the disk fills up", "folder", v.cfg.Folder, "used", used)
		return diskAlarm
	}
	return said
}
