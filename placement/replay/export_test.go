package replay

// SetMostJobs makes the bound of a record's jobs another, until it is told to undo it.
func SetMostJobs(n int) (undo func()) {
	was := mostJobs
	mostJobs = n
	return func() { mostJobs = was }
}
