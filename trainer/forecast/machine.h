/* Machine files: what the dry device knows of a machine, and where each figure is from.
 *
 * JSON, one object: "name", "about", "device_name", and per figure {"value": number, "source":
 * text}. The names of the figures are those of machine.c's table; rates must be there, while
 * capacities (device_bytes, host_bytes, node_devices), what libraries take, paces of single classes
 * of work (adamw_bytes_per_s and its like; memory_bytes_per_s stands for them), attention's rates
 * at head_dims up to 64 (attention_forward_64_flops_per_s and _backward_; those without 64 stand
 * for them) and by upipe's own kernels (attention_forward_own_flops_per_s, _own_64_ and so on;
 * those without own stand for them), what each of its runs takes besides (attention_forward_run_s
 * and _backward_) and what the copies of a node's devices get together (node_to_host_bytes_per_s
 * and _from_) may be left out. Built in are the files of trainer/machines. */
#ifndef UP_TRAINER_MACHINE_H
#define UP_TRAINER_MACHINE_H

#include "device/device.h"
#include "model/config.h"
#include "trainer/forecast/figures.h"

#include <jansson.h>

/* `name`: a built-in machine, or the path of a file. UP_USAGE names --machine and what was
 * expected. */
enum up_status up_machine_find(const char *name, struct up_machine *machine, struct up_error *err);

/* The built-in machine whose "device_name" is a device's own name ("NVIDIA H200"); *machine stays
 * where there is none. */
enum up_status up_machine_of_device(const char *device_name, struct up_machine *machine,
                                    struct up_error *err);

/* The figures that `object`, of up_machine_json's form, has in a sensible way; the others stay. */
void up_machine_take_json(struct up_machine *machine, const json_t *object);

/* The dry device of a rank of the config there: its copies share a host with its neighbours', and
 * its attention is by the config's kernels. As up_device_dry_create. */
struct up_device *up_machine_dry_device(const struct up_machine *machine,
                                        const struct up_config *config, struct up_error *err);

/* The machine as JSON, the caller's to free; NULL when memory is short. */
char *up_machine_json(const struct up_machine *machine);

/* A machine as plain figures, and back. */
void up_machine_figures(const struct up_machine *machine, struct up_figures *plain);
void up_machine_of_figures(const struct up_figures *plain, struct up_machine *machine);

#endif
