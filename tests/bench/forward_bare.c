/*
 * runtime/forward.c once more, as a build without the slot of the tags would have it: bench_integrity holds
 * --integrity off against it, in one process and on the same pages. Its names end in _bare, so that both can
 * be linked.
 */
#define FORWARD_NO_TAGS

#define forward_options_default forward_options_default_bare
#define forward_device_find forward_device_find_bare
#define forward_device_look forward_device_look_bare
#define forward_windowed forward_windowed_bare
#define forward_window_layers forward_window_layers_bare
#define forward_needs forward_needs_bare
#define forward_open forward_open_bare
#define forward_close forward_close_bare
#define forward_ops forward_ops_bare
#define forward_device forward_device_bare
#define forward_plan forward_plan_bare
#define forward_integrity_set forward_integrity_set_bare
#define forward_weights_bytes forward_weights_bytes_bare
#define forward_plan_hash forward_plan_hash_bare
#define forward_clock forward_clock_bare
#define forward_step forward_step_bare
#define forward_follow forward_follow_bare
#define forward_rank_main forward_rank_main_bare
#define forward_rank_gone forward_rank_gone_bare

#include "runtime/forward.c"
