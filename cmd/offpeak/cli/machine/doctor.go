package machine

import (
	"fmt"

	"github.com/spf13/cobra"

	"offpeak/cmd/offpeak/cli/machine/doctor"
	"offpeak/cmd/offpeak/cli/render"
	"offpeak/cmd/offpeak/cli/world"
)

// NewDoctor makes the command that examines this machine; setUp reads how its agent
// would be set up.
func NewDoctor(env world.Env, data *string, setUp func(data string) (Setup, error)) *cobra.Command {
	var as format
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine can and can't offer, and why",
		Long: `Doctor examines this machine: the data folder, the hub and the way to it, how jobs
are fenced in, which drivers work, the GPUs, what is seen of you, and settings that
are unsafe. Each line is ok, warn (something that can't be offered, or that you
should know) or FAIL (no job can run), with what to do about it. It needs no agent
that runs, works before the machine has joined, changes nothing, and takes a few
seconds. It exits with 1 if anything fails.`,
		Example: `  offpeak agent doctor
  offpeak agent doctor -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := as.check(); err != nil {
				return err
			}
			w, done := examine(env, *data, setUp)
			defer done()
			lines := doctor.Examine(cmd.Context(), w)
			worst := doctor.Worst(lines)
			if err := showExam(env, as, lines, worst); err != nil {
				return err
			}
			if worst == doctor.Fail {
				return &world.ExitError{Code: 1}
			}
			return nil
		},
	}
	as.flag(cmd)
	return cmd
}

func showExam(env world.Env, as format, lines []doctor.Line, worst doctor.Level) error {
	if as == "json" {
		return printJSON(env.Stdout, map[string]any{"level": worst, "lines": lines})
	}
	words := map[doctor.Level]string{doctor.OK: "ok", doctor.Warn: "warn", doctor.Fail: "FAIL"}
	t := render.NewTable(env.Stdout)
	for _, l := range lines {
		t.Row(words[l.Level], l.Check, l.Said)
		if l.Next != "" {
			t.Row("", "", "next: "+l.Next)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	count := map[doctor.Level]int{}
	for _, l := range lines {
		count[l.Level]++
	}
	text := "This machine can work for a grid."
	if worst == doctor.Fail {
		text = "This machine can't work for a grid as it is."
	}
	_, err := fmt.Fprintf(env.Stdout, "\n%s (%d ok, %d to know, %d failed)\n", text, count[doctor.OK], count[doctor.Warn], count[doctor.Fail])
	return err
}
