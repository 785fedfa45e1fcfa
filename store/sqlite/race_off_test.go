//go:build !race

package sqlite_test

const raced = false
