// Package docs keeps the documents for people that are generated from the
// vocabulary, and the test that they are up to date. Rewrite them with
// `make generate`.
package docs
