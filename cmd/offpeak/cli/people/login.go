package people

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"offpeak"
	"offpeak/cmd/offpeak/cli/remote"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
	"offpeak/wire"
)

func newLogin(env world.Env) *cobra.Command {
	c := &client{env: env}
	var token, fingerprint string
	cmd := &cobra.Command{
		Use:   "login URL...",
		Short: "Log in to a grid and remember it",
		Long: `Login checks a token with the hub at URL and keeps both as a context, which is
then in use. Several URLs are addresses of one grid: any that answers serves.

The token is asked for, read from standard input with --token -, or taken from
OFFPEAK_TOKEN. --fingerprint pins the key of a hub that signs its own
certificate; the hub prints it when it starts. --context names the context; by
default it is called as the hub's host.

The context is kept in a file that only you can read.`,
		Example: `  offpeak login https://hub.example:7070
  offpeak login https://hub.example:7070 --fingerprint 3b1f… --token - < token.txt`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			t := remote.Target{Name: c.context, Hubs: args, Fingerprint: fingerprint}
			if _, err := remote.New(remote.Config{Target: t}); err != nil {
				return world.Refuse(err)
			}
			if u, err := url.Parse(args[0]); t.Name == "" && err == nil {
				t.Name = u.Hostname()
			}
			if err := offpeak.ValidName("--context", t.Name); err != nil {
				return world.Refuse(err)
			}
			var err error
			if t.Token, err = c.readToken(token); err != nil {
				return err
			}
			return c.login(cmd.Context(), t)
		},
	}
	f := cmd.Flags()
	f.StringVar(&token, "token", "", "- reads the token from standard input (a token itself would show in the list of processes)")
	f.StringVar(&fingerprint, "fingerprint", "", "SHA-256 of the hub's public key, in `hex`")
	return c.command(cmd)
}

// readToken gets a token without it ever standing in the argument list.
func (c *client) readToken(flag string) (string, error) {
	var text string
	var err error
	switch {
	case flag == "-":
		text, err = bufio.NewReader(io.LimitReader(c.env.Stdin, 64<<10)).ReadString('\n')
		if errors.Is(err, io.EOF) {
			err = nil
		}
	case flag != "":
		return "", world.Refuse(&offpeak.FieldError{Field: "--token", Rule: "is - to read it from standard input, so that it does not show in the list of processes"})
	case c.env.Getenv("OFFPEAK_TOKEN") != "":
		text = c.env.Getenv("OFFPEAK_TOKEN")
	case world.Terminal(c.env.Stdin):
		fmt.Fprint(c.env.Stderr, "Token: ")
		var secret []byte
		secret, err = term.ReadPassword(int(c.env.Stdin.(*os.File).Fd()))
		fmt.Fprintln(c.env.Stderr)
		text = string(secret)
	}
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	if text = strings.TrimSpace(text); text == "" {
		return "", world.Refuse(world.Hint(errors.New("no token"), "Give one with --token - on standard input, or in OFFPEAK_TOKEN. The hub printed an admin token when it started first."))
	}
	return text, nil
}

func (c *client) login(ctx context.Context, t remote.Target) error {
	var err error
	if c.hub, err = remote.New(remote.Config{Target: t, Agent: "offpeak/" + world.NewBuild(c.env).Version, Note: c.note}); err != nil {
		return err
	}
	who, err := remote.Ask(ctx, c.hub, remote.Reading, func(ctx context.Context, d *wire.Direct) (wire.Whoami, error) { return d.Whoami(ctx) })
	if errors.Is(err, offpeak.ErrUnauthenticated) {
		return world.Hint(err, "The token is wrong, expired or revoked: ask for a new one.")
	} else if err != nil {
		return err
	}
	contexts, err := remote.LoadContexts(c.contextsPath())
	if err != nil {
		return err
	}
	contexts.Put(t)
	contexts.Current = t.Name
	if err := contexts.Save(c.contextsPath()); err != nil {
		return err
	}
	return c.print(who, []string{t.Name}, func(tb *render.Table) {
		tb.Line(fmt.Sprintf("Logged in to %s as %s of account %s; context %s is in use.", t.Hubs[0], who.Role, who.Account.Name, t.Name))
	})
}
