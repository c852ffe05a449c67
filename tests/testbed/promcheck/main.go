// promcheck holds rules and queries to Prometheus' own code: it parses them, and answers them out of scrapes.
//
// Standard input: {"rules": "text of a rule file", "queries": ["...", ...], "scrapes": [{"time": ms, "text": "..."}, ...]}.
// Standard output: {"rules": ["what is wrong", ...], "queries": [{"error": "...", "series": n}, ...]}, answered at the
// time of the last scrape.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb"
)

type scrape struct {
	Time int64  `json:"time"`
	Text string `json:"text"`
}

type asked struct {
	Rules   string   `json:"rules"`
	Queries []string `json:"queries"`
	Scrapes []scrape `json:"scrapes"`
}

type answer struct {
	Error  string `json:"error"`
	Series int    `json:"series"`
}

type answers struct {
	Rules   []string `json:"rules"`
	Queries []answer `json:"queries"`
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	var in asked
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "promcheck")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	db, err := tsdb.Open(dir, nil, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return err
	}
	defer db.Close()
	var last int64
	for _, each := range in.Scrapes {
		if err := store(db, each); err != nil {
			return err
		}
		last = max(last, each.Time)
	}
	out := answers{Rules: wrong(in.Rules), Queries: []answer{}}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute})
	for _, query := range in.Queries {
		out.Queries = append(out.Queries, answered(engine, db, query, last))
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

func wrong(rules string) []string {
	found := []string{}
	_, faults := rulefmt.Parse([]byte(rules), false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	for _, each := range faults {
		found = append(found, each.Error())
	}
	return found
}

// store appends the samples of a scrape, with the label that Prometheus adds.
func store(db *tsdb.DB, scrape scrape) error {
	appender := db.Appender(context.Background())
	reader, err := textparse.New([]byte(scrape.Text), "text/plain; version=0.0.4", labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		return err
	}
	for {
		entry, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return appender.Commit()
		}
		if err != nil {
			return err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, _, value := reader.Series()
		var of labels.Labels
		reader.Labels(&of)
		with := labels.NewBuilder(of).Set("instance", "operator").Labels()
		if _, err := appender.Append(0, with, scrape.Time, value); err != nil {
			return err
		}
	}
}

func answered(engine *promql.Engine, db *tsdb.DB, text string, at int64) answer {
	query, err := engine.NewInstantQuery(context.Background(), db, nil, text, time.UnixMilli(at))
	if err != nil {
		return answer{Error: err.Error()}
	}
	defer query.Close()
	result := query.Exec(context.Background())
	if result.Err != nil {
		return answer{Error: result.Err.Error()}
	}
	found, err := result.Vector()
	if err != nil {
		return answer{Error: fmt.Sprintf("no instant vector: %v", err)}
	}
	return answer{Series: len(found)}
}
