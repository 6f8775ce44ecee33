/*
 * The picture of a simulated run: who held the device's pages over time, and some sessions.
 */
#include <inttypes.h>
#include <string.h>

#include "runtime/simulate.h"

enum { LEFT = 80, WIDTH = PICTURE_SAMPLES, TOP = 56, HEIGHT = 240, ROW = 9, GAP = 44, RIGHT = 120 };
enum { BASE = TOP + HEIGHT, ROWS_TOP = BASE + GAP };

/* From the bottom up. */
static const struct {
	enum column column;
	const char *name, *colour;
} layers[] = {
	{COLUMN_RUNNING, "running", "#c1440e"},	  {COLUMN_PROMISED, "promised", "#e8a87c"},
	{COLUMN_SHARED, "shared", "#5b8e7d"},	  {COLUMN_RETAINED, "retained", "#3d6b99"},
	{COLUMN_MOVING, "moving", "#8e7cc3"},	  {COLUMN_DOOMED, "doomed", "#444444"},
};
enum { LAYERS = sizeof layers / sizeof layers[0] };

/* The layers up to and with this one, as a share of all. */
static double layer_share(const struct picture *p, uint32_t sample, uint32_t layer)
{
	double sum = 0, all = 0;
	for (uint32_t column = 0; column < COLUMN_COUNT; column++)
		all += p->column[sample][column];
	for (uint32_t i = 0; i <= layer; i++)
		sum += p->column[sample][layers[i].column];
	return all > 0 ? sum / all : 0;
}

/* Each is drawn down to the base, the highest first, so that the lower ones lie over it. */
static void svg_layers(FILE *file, const struct picture *p)
{
	const double step = (double)WIDTH / p->sample_count;
	for (uint32_t layer = LAYERS; layer-- > 0;) {
		fprintf(file, "<path fill=\"%s\" d=\"M%d %d", layers[layer].colour, LEFT, BASE);
		for (uint32_t i = 0; i < p->sample_count; i++)
			fprintf(file, "V%.1fH%.1f", BASE - HEIGHT * layer_share(p, i, layer),
				LEFT + step * (i + 1));
		fprintf(file, "V%dZ\"/>\n", BASE);
	}
}

static void svg_line(FILE *file, const struct picture *p, const double *bytes, uint64_t most,
		     const char *colour)
{
	const double step = (double)WIDTH / p->sample_count;
	if (most == 0)
		return;
	fprintf(file, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"", colour);
	for (uint32_t i = 0; i < p->sample_count; i++)
		fprintf(file, "%.1f,%.1f ", LEFT + step * (i + 0.5),
			BASE - HEIGHT * bytes[i] / (double)p->bucket_us / (double)most);
	fprintf(file, "\"/>\n");
}

static void svg_rect(FILE *file, double x, double width, uint32_t row, const char *colour, double share)
{
	if (width <= 0 || share <= 0)
		return;
	/* What is narrower than a fifth of a pixel would only make the file larger. */
	if (width < 0.2)
		width = 0.2;
	fprintf(file, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x,
		ROWS_TOP + ROW * (row + 1) - 1 - (ROW - 2) * share, width, (ROW - 2) * share, colour);
}

/* One row: a pale bar as high as the history while it pauses, dark the part that is resident. */
static void svg_session(FILE *file, const struct picture *p, uint32_t session, double us_width)
{
	const struct picture_state *states = p->session[session].states;
	for (uint32_t i = 0; i + 1 < p->session[session].count; i++) {
		const struct picture_state *s = &states[i];
		const double x = LEFT + (double)s->at_us * us_width;
		const double width = (double)(states[i + 1].at_us - s->at_us) * us_width;
		const double known = (double)s->history / p->tokens_max;
		const double held = (double)s->resident / p->tokens_max;
		if (s->state == SESSION_RUNNING) {
			svg_rect(file, x, width, session, "#c1440e", 1);
		} else if (s->state == SESSION_WAITING) {
			svg_rect(file, x, width, session, "#d9c400", 1);
		} else if (s->state == SESSION_IDLE && width > 0.05) {
			svg_rect(file, x, width, session, "#dde3ea", known > 0.15 ? known : 0.15);
			svg_rect(file, x, width, session, "#3d6b99", held);
		}
	}
}

static void svg_legend(FILE *file, const struct simulate_options *o)
{
	const int x = LEFT + WIDTH + 12;
	for (uint32_t i = 0; i < LAYERS; i++) {
		fprintf(file, "<rect x=\"%d\" y=\"%d\" width=\"10\" height=\"10\" fill=\"%s\"/>", x,
			BASE - 14 - 16 * (int)i, layers[i].colour);
		fprintf(file, "<text x=\"%d\" y=\"%d\">%s</text>\n", x + 15, BASE - 5 - 16 * (int)i,
			layers[i].name);
	}
	if (o->host_bytes)
		fprintf(file, "<text x=\"%d\" y=\"%d\" fill=\"#111111\">— host, of its own</text>\n", x,
			TOP + 10);
	if (o->disk_bytes)
		fprintf(file, "<text x=\"%d\" y=\"%d\" fill=\"#777777\">— disk, of its own</text>\n", x,
			TOP + 26);
	static const char *const rows[] = {"running", "waiting", "resident", "context"};
	static const char *const colours[] = {"#c1440e", "#d9c400", "#3d6b99", "#dde3ea"};
	for (int i = 0; i < 4; i++) {
		fprintf(file, "<rect x=\"%d\" y=\"%d\" width=\"10\" height=\"10\" fill=\"%s\"/>", x,
			ROWS_TOP + 16 * i, colours[i]);
		fprintf(file, "<text x=\"%d\" y=\"%d\">%s</text>\n", x + 15, ROWS_TOP + 9 + 16 * i, rows[i]);
	}
}

static void svg_axes(FILE *file, const struct simulate_options *o, double hours)
{
	for (int i = 0; i <= 4; i++) {
		const int y = BASE - HEIGHT * i / 4;
		fprintf(file, "<line x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\" stroke=\"#999999\"/>", LEFT - 4,
			LEFT, y, y);
		fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%.2f GiB</text>\n", LEFT - 7, y + 4,
			(double)o->memory_bytes * i / 4 / (1 << 30));
	}
	for (int i = 0; i <= 8; i++)
		fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%.2f h</text>\n",
			LEFT + WIDTH * i / 8, BASE + 15, hours * i / 8);
}

int simulate_svg(const char *path, const struct simulate_options *o, const char *policy,
		 const struct simulate_report *r, const struct picture *p)
{
	const int height = ROWS_TOP + ROW * (int)p->session_count + 20;
	const double span_us = (double)p->bucket_us * (p->sample_count ? p->sample_count : 1);
	const uint64_t reusable = r->tokens_resident + r->tokens_reloaded + r->tokens_recomputed;
	FILE *file = fopen(path, "wb");
	if (!file)
		return -ERR_IO;
	fprintf(file, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
		"font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" "
		"fill=\"#ffffff\"/>\n", LEFT + WIDTH + RIGHT, height);
	/* The policy's name is one of ours and a number: nothing in it needs an escape. */
	fprintf(file, "<text x=\"%d\" y=\"22\" font-size=\"15\">Pages of the device, policy %s</text>\n"
		"<text x=\"%d\" y=\"40\">%" PRIu64 " turns of %" PRIu64 " sessions, %.1f %% of what could be "
		"kept was computed again</text>\n", LEFT, policy, LEFT, r->turns, r->sessions,
		reusable ? 100 * (double)r->tokens_recomputed / (double)reusable : 0);
	if (p->sample_count) {
		fprintf(file, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#f2f2f2\"/>\n", LEFT,
			TOP, WIDTH, HEIGHT);
		svg_layers(file, p);
		svg_line(file, p, p->host, o->host_bytes, "#111111");
		svg_line(file, p, p->disk, o->disk_bytes, "#777777");
	}
	svg_axes(file, o, span_us / 3.6e9);
	svg_legend(file, o);
	fprintf(file, "<text x=\"%d\" y=\"%d\">some sessions, in the order of their starts</text>\n", LEFT,
		ROWS_TOP - 6);
	for (uint32_t i = 0; i < p->session_count; i++)
		svg_session(file, p, i, WIDTH / span_us);
	fprintf(file, "</svg>\n");
	const int failed = ferror(file);
	return fclose(file) != 0 || failed ? -ERR_IO : 0;
}
