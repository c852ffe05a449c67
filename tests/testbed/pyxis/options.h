/* What a user asked of Pyxis: its options on srun's and sbatch's command line, or in PYXIS_CONTAINER_*. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <slurm/spank.h>
#include <stdbool.h>
#include <stdio.h>

enum text_option { IMAGE, MOUNTS, WORKDIR, NAME, SAVE, ENV, UNSHARE, TEXT_OPTIONS };
enum flag_option { MOUNT_HOME, REMAP_ROOT, ENTRYPOINT, ENTRYPOINT_LOG, WRITABLE, FLAG_OPTIONS };

/* Values are NULL, and flags -1, where nothing was said. */
const char *option_text(enum text_option which);
int option_flag(enum flag_option which);
/* Whether NAME stands in --container-env. */
bool option_env_has(const char *name);
/* Whether an image path or reference names a file: Pyxis takes only what begins with `/` or `.` for one. */
bool option_image_is_file(void);

/* Both return 0, or -1 after saying what is wrong. */
int options_register(spank_t spank);
int options_from_environment(spank_t spank);

/* Whether a container was asked for at all; says which options are ignored if not. */
bool options_want_container(void);

/* Write the options that were given as one JSON object. */
void options_write_json(FILE *out);
void json_string(FILE *out, const char *text);

#endif
