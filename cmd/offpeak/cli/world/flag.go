package world

import (
	"errors"

	"github.com/spf13/pflag"

	"offpeak"
)

// FlagError turns what pflag says of a flag's value into an error that names
// the flag and the rule; any other error stays as it is.
func FlagError(err error) error {
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	out := &offpeak.FieldError{Field: "--" + bad.GetFlag().Name, Value: bad.GetValue()}
	if rule, ok := errors.AsType[*offpeak.ValueError](err); ok {
		out.Rule = rule.Rule
		return out
	}
	switch bad.GetFlag().Value.Type() {
	case "duration":
		out.Rule = "is a length of time with its unit, for example 90s, 15m or 1h30m"
	case "int", "int64":
		out.Rule = "is a whole number"
	case "uint", "uint64":
		out.Rule = "is a whole number, not negative"
	case "float64":
		out.Rule = "is a number"
	case "bool":
		out.Rule = "is true or false"
	case "stringToString":
		out.Rule = "is written key=value"
	default:
		return err
	}
	return out
}
