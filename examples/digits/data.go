package main

import (
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
)

const (
	side    = 8           // an image is side × side pixels
	pixels  = side * side // and flat in memory
	classes = 10
)

// image is one handwritten digit: pixels from 0 to 1, row by row, and the digit.
type image struct {
	pixel [pixels]float32
	digit int
}

// load reads the data file: gzipped CSV, 64 pixels from 0 to 16 and the digit
// in each row.
func load(path string) ([]image, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	rows := csv.NewReader(zip)
	rows.FieldsPerRecord = pixels + 1
	rows.ReuseRecord = true
	var images []image
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return images, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		var img image
		for i := range img.pixel {
			v, err := strconv.ParseFloat(row[i], 32)
			if err != nil || v < 0 || v > 16 {
				return nil, fmt.Errorf("read %s: image %d: pixel %d is %q, not 0 to 16", path, len(images)+1, i, row[i])
			}
			img.pixel[i] = float32(v / 16)
		}
		img.digit, err = strconv.Atoi(row[pixels])
		if err != nil || img.digit < 0 || img.digit >= classes {
			return nil, fmt.Errorf("read %s: image %d: %q is not a digit", path, len(images)+1, row[pixels])
		}
		images = append(images, img)
	}
}

// split shuffles the images in an order of its own, the same in every run, and
// keeps a quarter of them back for the test.
func split(images []image) (train, test []image) {
	shuffled := append([]image(nil), images...)
	rng := rand.New(rand.NewPCG(1, 1))
	rng.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	n := len(shuffled) / 4
	return shuffled[n:], shuffled[:n]
}

// jitter writes a copy of img to out, moved by up to one pixel in each
// direction and with a little noise, so that the network never sees one image
// twice.
func jitter(rng *rand.Rand, img *image, out *[pixels]float32) {
	dx, dy := 2*rng.Float32()-1, 2*rng.Float32()-1
	for y := range side {
		for x := range side {
			out[y*side+x] = sample(img, float32(x)+dx, float32(y)+dy) + 0.1*(rng.Float32()-0.5)
		}
	}
}

// sample reads the image between its pixels; outside it is blank.
func sample(img *image, x, y float32) float32 {
	// Moved by 1 so that the conversion, which cuts towards zero, rounds down.
	x0, y0 := int(x+1)-1, int(y+1)-1
	fx, fy := x-float32(x0), y-float32(y0)
	at := func(x, y int) float32 {
		if x < 0 || y < 0 || x >= side || y >= side {
			return 0
		}
		return img.pixel[y*side+x]
	}
	top := at(x0, y0)*(1-fx) + at(x0+1, y0)*fx
	bottom := at(x0, y0+1)*(1-fx) + at(x0+1, y0+1)*fx
	return top*(1-fy) + bottom*fy
}
