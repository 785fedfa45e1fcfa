package offpeak

import (
	"errors"
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// TestAskFor: the price of a job is the price of a device for each that it takes,
// in arithmetic without bounds; what is above MaxPrice is all alike.
func TestAskFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		of := rapid.OneOf(rapid.Int64Range(0, 9), rapid.Int64Range(0, int64(MaxPrice)), rapid.SampledFrom([]int64{int64(MaxPrice) / 3, int64(MaxPrice)/3 + 1, int64(MaxPrice) / 16}))
		a := Ask{GPU: Price(of.Draw(t, "gpu")), CPU: Price(of.Draw(t, "cpu"))}
		n := rapid.OneOf(rapid.IntRange(0, 16), rapid.IntRange(0, 5000)).Draw(t, "devices")
		want := big.NewInt(int64(a.CPU))
		if n > 0 {
			want.Mul(big.NewInt(int64(a.GPU)), big.NewInt(int64(n)))
		}
		if most := big.NewInt(int64(MaxPrice)); want.Cmp(most) > 0 {
			want.Add(most, big.NewInt(1))
		}
		r := need(make([]GPURequest, n)...)
		got := a.For(r)
		if want.Cmp(big.NewInt(int64(got))) != 0 {
			t.Fatalf("%+v for %d devices is %s, want %s", a, n, got, want)
		}
		// Nobody pays more than there is, whatever they say.
		r.MaxPrice = price(math.MaxInt64)
		if fits := got <= r.limit(); fits != (got <= MaxPrice) {
			t.Fatalf("%s is within %s: %v", got, r.limit(), fits)
		}
	})
}

func TestAskRefuses(t *testing.T) {
	for _, a := range []Ask{{GPU: -1}, {CPU: -1}, {GPU: MaxPrice + 1}, {CPU: math.MaxInt64}, {GPU: math.MinInt64}} {
		var field *FieldError
		if err := a.Validate(); !errors.As(err, &field) || !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", a, err)
		}
	}
	for _, a := range []Ask{{}, {GPU: MaxPrice, CPU: MaxPrice}} {
		if err := a.Validate(); err != nil {
			t.Errorf("%+v: %v", a, err)
		}
	}
}
