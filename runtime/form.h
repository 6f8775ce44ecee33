#ifndef HOLDFAST_RUNTIME_FORM_H
#define HOLDFAST_RUNTIME_FORM_H
#include "runtime/template.h"
struct form;
struct form_state { uint32_t x[8]; };
int form_open(const struct tool *tools, uint32_t count, struct form **out);
void form_close(struct form **form);
struct form *form_share(struct form *form);
void form_start(const struct form *form, struct form_state *state);
void form_advance(const struct form *form, struct form_state *state, const char *bytes, size_t length);
void form_mask(const struct form *form, const struct form_state *state, const struct tokenizer *tokenizer, uint32_t *bits);
#endif
