package main

import (
	"math"
	"math/rand/v2"
)

// layer is one fully connected layer with its Adam moments.
type layer struct {
	In, Out int
	// W holds Out rows of In weights and one bias. M and V are Adam's running
	// means of the gradient and of its square.
	W, M, V []float32
	grad    []float32
}

func newLayer(rng *rand.Rand, in, out int) *layer {
	l := &layer{In: in, Out: out}
	n := out * (in + 1)
	l.W, l.M, l.V = make([]float32, n), make([]float32, n), make([]float32, n)
	scale := math.Sqrt(2 / float64(in))
	for o := range out {
		for i := range in {
			l.W[o*(in+1)+i] = float32(rng.NormFloat64() * scale)
		}
	}
	l.grad = make([]float32, n)
	return l
}

func (l *layer) forward(x, y []float32) {
	for o := range y {
		row := l.W[o*(l.In+1) : (o+1)*(l.In+1)]
		sum := row[l.In]
		for i, v := range x {
			sum += row[i] * v
		}
		y[o] = sum
	}
}

// backward adds to the gradient, given the input and the loss's slope dy at the
// output, and writes the slope at the input to dx unless it is nil.
func (l *layer) backward(x, dy, dx []float32) {
	clear(dx)
	for o, d := range dy {
		if d == 0 {
			continue
		}
		row := l.W[o*(l.In+1) : (o+1)*(l.In+1)]
		grad := l.grad[o*(l.In+1) : (o+1)*(l.In+1)]
		grad[l.In] += d
		for i, v := range x {
			grad[i] += d * v
		}
		for i := range dx {
			dx[i] += d * row[i]
		}
	}
}

// update moves the weights against the gradient (Adam) and clears it.
func (l *layer) update(step int, rate float64, batch int) {
	const beta1, beta2, epsilon = 0.9, 0.999, 1e-8
	fix1 := 1 - math.Pow(beta1, float64(step))
	fix2 := 1 - math.Pow(beta2, float64(step))
	alpha := float32(rate * math.Sqrt(fix2) / fix1)
	for i := range l.W {
		g := l.grad[i] / float32(batch)
		l.M[i] = beta1*l.M[i] + (1-beta1)*g
		l.V[i] = beta2*l.V[i] + (1-beta2)*g*g
		l.W[i] -= alpha * l.M[i] / (float32(math.Sqrt(float64(l.V[i]))) + epsilon)
		l.grad[i] = 0
	}
}

// net is a perceptron with one hidden layer of rectified units.
type net struct {
	hidden, output *layer
	// Scratch space of one image.
	h, dh, p []float32
}

func newNet(rng *rand.Rand, hidden int) *net {
	return wrap(newLayer(rng, pixels, hidden), newLayer(rng, hidden, classes))
}

func wrap(hidden, output *layer) *net {
	for _, l := range []*layer{hidden, output} {
		l.grad = make([]float32, len(l.W))
	}
	return &net{
		hidden: hidden, output: output,
		h: make([]float32, hidden.Out), dh: make([]float32, hidden.Out), p: make([]float32, classes),
	}
}

// infer leaves the probabilities of the digits in n.p.
func (n *net) infer(x []float32) {
	n.hidden.forward(x, n.h)
	for i, v := range n.h {
		n.h[i] = max(v, 0)
	}
	n.output.forward(n.h, n.p)
	top := n.p[0]
	for _, v := range n.p {
		top = max(top, v)
	}
	var sum float32
	for i, v := range n.p {
		n.p[i] = float32(math.Exp(float64(v - top)))
		sum += n.p[i]
	}
	for i := range n.p {
		n.p[i] /= sum
	}
}

// learn adds one image to the gradient and returns its loss (cross-entropy).
func (n *net) learn(x []float32, digit int) float64 {
	n.infer(x)
	loss := -math.Log(float64(max(n.p[digit], 1e-12)))
	n.p[digit]--
	n.output.backward(n.h, n.p, n.dh)
	for i, v := range n.h {
		if v == 0 {
			n.dh[i] = 0
		}
	}
	n.hidden.backward(x, n.dh, nil)
	return loss
}

// accuracy is the share of images that the network reads right.
func (n *net) accuracy(images []image) float64 {
	right := 0
	for i := range images {
		n.infer(images[i].pixel[:])
		best := 0
		for d, p := range n.p {
			if p > n.p[best] {
				best = d
			}
		}
		if best == images[i].digit {
			right++
		}
	}
	return float64(right) / float64(len(images))
}
