package page

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"offpeak/internal/require"
)

// faint lists texts whose contrast is below what WCAG AA asks for, and what sticks out
// of a narrow screen.
const faint = `(() => {
	const lum = c => c.map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
	const read = s => s.match(/[\d.]+/g).map(Number);
	const out = [];
	for (const e of document.querySelectorAll("body *")) {
		if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || !e.checkVisibility()) continue;
		let ground = [255, 255, 255];
		for (let p = e; p; p = p.parentElement) {
			const c = read(getComputedStyle(p).backgroundColor);
			if (c.length < 4 || c[3] > 0) { ground = c; break; }
		}
		const a = lum(read(getComputedStyle(e).color).slice(0, 3)), b = lum(ground.slice(0, 3));
		const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
		if (ratio < 4.5) out.push(e.tagName + " " + e.textContent.trim().slice(0, 30) + " " + ratio.toFixed(2));
	}
	if (document.documentElement.scrollWidth > innerWidth) out.push("the page is " + document.documentElement.scrollWidth + " wide on " + innerWidth);
	for (const b of document.querySelectorAll("button")) if (b.checkVisibility() && b.getBoundingClientRect().height < 44) out.push(b.id + " is too small for a thumb");
	return out;
})()`

// browse opens a browser with one tab.
func browse(t *testing.T) context.Context {
	t.Helper()
	path := require.Tool(t, "chromium", "chromium")
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.Flag("disable-dev-shm-usage", true))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), opts...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func do(t *testing.T, ctx context.Context, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	for i, s := range steps {
		if err := chromedp.Do(ctx, s); err != nil {
			t.Fatalf("step %d: %v", i+1, err)
		}
	}
}

func eval[T any](t *testing.T, ctx context.Context, js string) T {
	t.Helper()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](js))
	if err != nil {
		t.Fatalf("%s: %v", js, err)
	}
	return v
}

func until(t *testing.T, ctx context.Context, js string) {
	t.Helper()
	for range 400 {
		if eval[bool](t, ctx, js) {
			return
		}
		time.Sleep(25 * time.Millisecond)
	}
	t.Fatalf("never: %s; the page says: %s", js, eval[string](t, ctx, "document.body.innerText"))
}

const says = `document.getElementById("headline").textContent === `

// A real browser opens the link, shows what the machine does, and pauses it by the
// keyboard alone; the link works once, the open tab goes on.
func TestBrowser(t *testing.T) {
	m := busy()
	p := serve(t, m, time.Now())
	ctx := browse(t)
	complaints := make(chan string, 100)
	complain := func(text string) {
		select {
		case complaints <- text:
		default:
		}
	}
	do(t, ctx, chromedp.Navigate("about:blank"))
	if err := chromedp.Listen(ctx, func(ev any) {
		switch ev := ev.(type) {
		case *log.EventEntryAdded:
			complain(ev.Entry.Text)
		case *runtime.EventExceptionThrown:
			complain(ev.ExceptionDetails.Text)
		}
	}); err != nil {
		t.Fatal(err)
	}
	link := p.Link()
	do(t, ctx, chromedp.EmulateViewport(360, 740), chromedp.Navigate(link))
	until(t, ctx, says+`"Works on a job"`)
	if at := eval[string](t, ctx, "location.href"); strings.Contains(at, "#") || strings.Contains(at, p.key) {
		t.Errorf("the address keeps the word: %s", at)
	}
	text := eval[string](t, ctx, "document.body.innerText")
	for _, want := range []string{"attic", "acct_them", "12:00, 5m00s ago", "1234.00", "61 °C", "22GiB offered", "1.2GiB held by others", "power cap", "92 °C", "99 of 100", "The owner came back", "acct_rude", "no answer", "<img src=x"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if title := eval[string](t, ctx, "document.title"); title != "Works on a job · Offpeak" {
		t.Errorf("the title is %q", title)
	}

	for _, scheme := range []string{"light", "dark"} {
		if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}); err != nil {
			t.Fatal(err)
		}
		for _, width := range []int64{360, 1280} {
			do(t, ctx, chromedp.EmulateViewport(width, 740))
			if bad := eval[[]string](t, ctx, faint); len(bad) > 0 {
				t.Errorf("%s, %d wide: %v", scheme, width, bad)
			}
			if dir := os.Getenv("OFFPEAK_TEST_PICTURES"); dir != "" {
				shot, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, "page-"+scheme+map[int64]string{360: "-narrow", 1280: ""}[width]+".png"), shot, 0o600)
				}
				if err != nil {
					t.Error(err)
				}
			}
		}
	}

	// The first thing that the keyboard reaches is the pause.
	do(t, ctx, chromedp.KeyEvent(kb.Tab))
	if on := eval[string](t, ctx, "document.activeElement.id"); on != "pause" {
		t.Errorf("the first Tab leads to %q", on)
	}
	do(t, ctx, chromedp.KeyEvent(kb.Enter))
	until(t, ctx, says+`"Paused until you resume" && document.activeElement.id === "resume"`)
	if n, _ := m.paused(); n != 1 {
		t.Errorf("paused %d times", n)
	}
	do(t, ctx, chromedp.KeyEvent(kb.Enter))
	until(t, ctx, says+`"Ready: waits for a job" && document.activeElement.id === "pause"`)

	// It follows by itself, and a reload needs no link.
	m.mu.Lock()
	m.view.Headline = "Not working: owner returned"
	m.mu.Unlock()
	until(t, ctx, says+`"Not working: owner returned"`)
	do(t, ctx, chromedp.Reload())
	until(t, ctx, says+`"Not working: owner returned"`)
	select {
	case text := <-complaints:
		t.Errorf("the browser complains: %s", text)
	default:
	}

	// Another tab has not the key, and the link is spent.
	other, cancel := chromedp.NewContext(ctx)
	defer cancel()
	do(t, other, chromedp.Navigate(link))
	until(t, other, says+`"This page is not open" && document.getElementById("pause").disabled`)
	if text := eval[string](t, other, "document.body.innerText"); strings.Contains(text, "attic") || !strings.Contains(text, "run `offpeak agent status --web` again") {
		t.Errorf("a spent link shows %s", text)
	}
}
