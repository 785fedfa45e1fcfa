//go:build unix

package data

import "golang.org/x/sys/unix"

// diskUsed is the share of the folder's filesystem that is not free for us;
// 0 where it can't be told.
func diskUsed(folder string) float64 {
	var s unix.Statfs_t
	if folder == "" || unix.Statfs(folder, &s) != nil || s.Blocks == 0 {
		return 0
	}
	used := float64(s.Blocks - s.Bfree)
	return used / (used + float64(s.Bavail))
}
