package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/lmittmann/tint"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"offpeak"
	"offpeak/cmd/offpeak/cli/world"
)

// envPrefix stands before the name of a flag in the environment:
// OFFPEAK_LOG_LEVEL is --log-level.
const envPrefix = "OFFPEAK_"

// configure fills flags that the command line leaves out from the environment,
// else from a file in YAML with the flags' names as keys. path is the file, ""
// for fallback if that exists. Every value goes through its flag, so a wrong one
// is refused wherever it stands.
func configure(flags *pflag.FlagSet, path, fallback string, getenv func(string) string) error {
	k := koanf.New("\x00")
	if path == "" {
		if _, err := os.Stat(fallback); err == nil {
			path = fallback
		}
	}
	if path != "" {
		if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return badInput("--config: %s does not exist", path)
			}
			return badInput("--config: read %s: %w", path, err)
		}
		for _, key := range k.Keys() {
			if f := flags.Lookup(key); f == nil || key == "config" {
				return badInput("--config: %s: %q is not known; it takes the names of the flags", path, key)
			}
		}
	}
	inFile := k.Keys()
	err := k.Load(env.Provider("\x00", env.Opt{
		Prefix: envPrefix,
		TransformFunc: func(name, value string) (string, any) {
			return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, envPrefix), "_", "-")), value
		},
		EnvironFunc: func() (vars []string) {
			flags.VisitAll(func(f *pflag.Flag) {
				name := envName(f.Name)
				if v := getenv(name); v != "" {
					vars = append(vars, name+"="+v)
				}
			})
			return vars
		},
	}), nil)
	if err != nil {
		return fmt.Errorf("read environment: %w", err)
	}
	for _, key := range k.Keys() {
		f := flags.Lookup(key)
		if f == nil || f.Changed {
			continue
		}
		value := k.String(key)
		if list, ok := k.Get(key).([]any); ok {
			value = strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ","), "[]")
		}
		if err := flags.Set(key, value); err != nil {
			where := envName(key)
			if getenv(where) == "" && slices.Contains(inFile, key) {
				where = path + ": " + key
			}
			if rule, ok := errors.AsType[*offpeak.FieldError](world.FlagError(err)); ok {
				return world.Refuse(&offpeak.FieldError{Field: where, Value: rule.Value, Rule: rule.Rule})
			}
			return badInput("%s: %w", where, err)
		}
	}
	return nil
}

func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// logging is what the commands that run for long say of their log.
type logging struct{ level, format string }

func (l *logging) flags(f *pflag.FlagSet) {
	f.StringVar(&l.level, "log-level", "info", "least level that is logged: debug, info, warn or error")
	f.StringVar(&l.format, "log-format", "auto", "text, json, or auto: text on a terminal")
}

// logger makes the log on w.
func (l *logging) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, l.level) || level.UnmarshalText([]byte(l.level)) != nil {
		return nil, badInput("--log-level: %q: is debug, info, warn or error", l.level)
	}
	f, ok := w.(*os.File)
	tty := ok && term.IsTerminal(int(f.Fd()))
	switch {
	case l.format == "json", l.format == "auto" && !tty:
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})), nil
	case l.format == "text", l.format == "auto":
		return slog.New(tint.NewTextHandler(w, &tint.Options{Level: level, TimeFormat: time.TimeOnly, NoColor: !tty})), nil
	}
	return nil, badInput("--log-format: %q: is auto, text or json", l.format)
}
