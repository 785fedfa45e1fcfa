package market

import "strings"

// NominalWatts returns what a graphics card draws under load as its maker says
// (board power), and false for a model that is not known: laptops' chips bear the
// names of cards and draw whatever the laptop allows.
func NominalWatts(model string) (int64, bool) {
	model = strings.ToLower(model)
	if strings.Contains(model, "laptop") || strings.Contains(model, "mobile") || strings.Contains(model, "max-q") {
		return 0, false
	}
	watts, longest := int64(0), 0
	for _, c := range nominal() {
		if len(c.name) > longest && strings.Contains(model, c.name) {
			watts, longest = c.watts, len(c.name)
		}
	}
	return watts, longest > 0
}

type card struct {
	name  string
	watts int64
}

// nominal are cards that people have, by the makers' data sheets.
func nominal() []card {
	return []card{
		{"rtx 5090", 575}, {"rtx 5080", 360}, {"rtx 5070 ti", 300}, {"rtx 5070", 250}, {"rtx 5060 ti", 180}, {"rtx 5060", 145},
		{"rtx 4090", 450}, {"rtx 4080", 320}, {"rtx 4070 ti", 285}, {"rtx 4070 super", 220}, {"rtx 4070", 200}, {"rtx 4060 ti", 160}, {"rtx 4060", 115},
		{"rtx 3090 ti", 450}, {"rtx 3090", 350}, {"rtx 3080 ti", 350}, {"rtx 3080", 320}, {"rtx 3070 ti", 290}, {"rtx 3070", 220},
		{"rtx 3060 ti", 200}, {"rtx 3060", 170}, {"rtx 3050", 130},
		{"rtx 2080 ti", 250}, {"rtx 2080 super", 250}, {"rtx 2080", 215}, {"rtx 2070 super", 215}, {"rtx 2070", 175}, {"rtx 2060", 160},
		{"gtx 1080 ti", 250}, {"gtx 1080", 180}, {"gtx 1070", 150}, {"gtx 1060", 120}, {"gtx 1660", 120}, {"gtx 1650", 75},
		{"rx 9070 xt", 304}, {"rx 9070", 220}, {"rx 7900 xtx", 355}, {"rx 7900 xt", 315}, {"rx 7800 xt", 263}, {"rx 7700 xt", 245}, {"rx 7600", 165},
		{"rx 6900 xt", 300}, {"rx 6800 xt", 300}, {"rx 6800", 250}, {"rx 6700 xt", 230}, {"rx 6600 xt", 160}, {"rx 6600", 132},
		{"arc b580", 190}, {"arc b570", 150}, {"arc a770", 225}, {"arc a750", 225}, {"arc a380", 75},
	}
}
