package supervisor

// GroupName lets tests look for what a supervisor should have removed.
func GroupName(dir string) string { return groupName(dir) }
