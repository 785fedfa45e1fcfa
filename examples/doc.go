// Package examples tests the Python jobs in the folders below it, by the
// system's interpreter: each is killed, sent SIGTERM and given a notice in the
// middle of its training, and must end as if nothing had happened. The example
// in Go is tested in its own folder.
package examples
