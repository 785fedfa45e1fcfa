package main

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"math"
	"math/rand/v2"
)

// training is everything that the next step depends on. All of it goes into a
// checkpoint, so a resumed training takes exactly the steps that the
// interrupted one would have taken.
type training struct {
	images []image
	batch  int
	steps  int
	rate   float64
	step   int
	net    *net
	pcg    *rand.PCG
	rng    *rand.Rand
	x      [pixels]float32
}

func newTraining(images []image, seed uint64, hidden, batch, steps int, rate float64) *training {
	t := &training{images: images, batch: batch, steps: steps, rate: rate, pcg: rand.NewPCG(seed, 0)}
	t.rng = rand.New(t.pcg)
	t.net = newNet(t.rng, hidden)
	return t
}

// advance takes one step: the gradient over one batch of jittered images, at a
// rate that falls to zero along a cosine. It returns the batch's mean loss.
func (t *training) advance() float64 {
	t.step++
	loss := 0.0
	for range t.batch {
		img := &t.images[t.rng.IntN(len(t.images))]
		jitter(t.rng, img, &t.x)
		loss += t.net.learn(t.x[:], img.digit)
	}
	rate := t.rate * (1 + math.Cos(math.Pi*float64(t.step)/float64(t.steps+1))) / 2
	t.net.hidden.update(t.step, rate, t.batch)
	t.net.output.update(t.step, rate, t.batch)
	return loss / float64(t.batch)
}

// state is the stored form of a training.
type state struct {
	Step, Steps, Batch int
	Rate               float64
	RNG                []byte
	Hidden, Output     *layer
}

// MarshalBinary implements encoding.BinaryMarshaler.
func (t *training) MarshalBinary() ([]byte, error) {
	rng, err := t.pcg.MarshalBinary()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = gob.NewEncoder(&b).Encode(state{
		Step: t.step, Steps: t.steps, Batch: t.batch, Rate: t.rate, RNG: rng,
		Hidden: t.net.hidden, Output: t.net.output,
	})
	return b.Bytes(), err
}

// UnmarshalBinary implements encoding.BinaryUnmarshaler. A state of another
// training (other sizes, other length) is an error and changes nothing.
func (t *training) UnmarshalBinary(data []byte) error {
	var s state
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&s); err != nil {
		return err
	}
	switch {
	case s.Steps != t.steps || s.Batch != t.batch || s.Rate != t.rate:
		return fmt.Errorf("it is of a training of %d steps in batches of %d at rate %g", s.Steps, s.Batch, s.Rate)
	case !s.Hidden.like(t.net.hidden) || !s.Output.like(t.net.output):
		return fmt.Errorf("it is of a network of another shape")
	case s.Step < 0 || s.Step > s.Steps:
		return fmt.Errorf("it is of step %d of %d", s.Step, s.Steps)
	}
	if err := t.pcg.UnmarshalBinary(s.RNG); err != nil {
		return err
	}
	t.step, t.net = s.Step, wrap(s.Hidden, s.Output)
	return nil
}

func (l *layer) like(other *layer) bool {
	return l != nil && l.In == other.In && l.Out == other.Out &&
		len(l.W) == len(other.W) && len(l.M) == len(other.M) && len(l.V) == len(other.V)
}
