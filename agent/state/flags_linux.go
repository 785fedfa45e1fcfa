package state

import "golang.org/x/sys/unix"

// fixed says that an open folder has a flag that keeps even its owner from
// changing it: a job that runs as root may have set it (chattr +i, +a).
func fixed(dir int) bool {
	var st unix.Statx_t
	err := unix.Statx(dir, "", unix.AT_EMPTY_PATH, 0, &st)
	return err == nil && st.Attributes&(unix.STATX_ATTR_IMMUTABLE|unix.STATX_ATTR_APPEND) != 0
}
