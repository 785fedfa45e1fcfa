package market_test

import (
	"testing"

	"offpeak/market"
)

func TestNominalWatts(t *testing.T) {
	for model, want := range map[string]int64{
		"NVIDIA GeForce RTX 4070 Ti SUPER":   285, // the longest name that is in it
		"NVIDIA GeForce RTX 4070":            200,
		"GeForce GTX 1660 Ti":                120,
		"AMD Radeon RX 7900 XTX":             355,
		"NVIDIA GeForce RTX 4090 Laptop GPU": 0, // a chip of another power
		"Quadro P400":                        0,
		"":                                   0,
	} {
		if got, known := market.NominalWatts(model); got != want || known != (want > 0) {
			t.Errorf("%s: %d, %v; want %d", model, got, known, want)
		}
	}
}
