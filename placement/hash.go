package placement

// FNV-1a, without the allocations of hash/fnv.
const (
	hashStart = 14695981039346656037
	hashPrime = 1099511628211
)

func hashText(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * hashPrime
	}
	return h
}

func hashNumber(h, x uint64) uint64 {
	for range 8 {
		h = (h ^ x&0xff) * hashPrime
		x >>= 8
	}
	return h
}

// mix spreads the bits of x, so that neighbours do not stay neighbours.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
