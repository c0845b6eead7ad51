/*
 * udat_config.h - the version of DAT: 2.0, for programs in user space.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef _UDAT_CONFIG_H_
#define _UDAT_CONFIG_H_

/* The version that dat_ia_open requests. */
#define DAT_VERSION_MAJOR 2
#define DAT_VERSION_MINOR 0

/*
 * The thread safety that dat_ia_open requests: DAT_FALSE, the default of DAT 2.0, unless the program is compiled with
 * -DDAT_THREADSAFE=DAT_TRUE. The libraries of this project are thread-safe in both cases (is_thread_safe of
 * dat_ia_query); with DAT_TRUE, libraries that are not thread-safe are refused.
 */
#ifndef DAT_THREADSAFE
#define DAT_THREADSAFE DAT_FALSE
#endif

/* Extension operations are part of this library: dat_extension_op, and dat_ib_extensions.h. */
#define DAT_EXTENSIONS 1

#endif /* _UDAT_CONFIG_H_ */
