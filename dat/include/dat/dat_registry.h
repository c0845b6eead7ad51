/*
 * dat_registry.h - the interface between a provider library and libdat. Programs that only use DAT do not need it.
 *
 * A provider is a shared object that exports dat_provider_init and may export dat_provider_fini. When a program opens
 * an IA name of which no IA is open, libdat calls init for the name's line of dat.conf. Before the first init it loads
 * the library. Init calls dat_registry_add_provider for the name.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef _DAT_REGISTRY_H_
#define _DAT_REGISTRY_H_

#ifndef _UDAT_H_
#error "include <dat/udat.h> before <dat/dat_registry.h>"
#endif

#include <dat/udat_redirection.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Names of the functions that libdat looks up in a provider library: as strings for dlsym, and as identifiers. */
#define DAT_PROVIDER_INIT_FUNC_STR  "dat_provider_init"
#define DAT_PROVIDER_FINI_FUNC_STR  "dat_provider_fini"
#define DAT_PROVIDER_INIT_FUNC_NAME dat_provider_init
#define DAT_PROVIDER_FINI_FUNC_NAME dat_provider_fini

/* instance_data is the ia_params field of the line in dat.conf. The provider calls dat_registry_add_provider. */
typedef void (*DAT_PROVIDER_INIT_FUNC)(
    IN const DAT_PROVIDER_INFO *provider_info,
    IN const char              *instance_data);

/* Called when the last IA of that name was closed, and after an init that did not register the name. */
typedef void (*DAT_PROVIDER_FINI_FUNC)(IN const DAT_PROVIDER_INFO *provider_info);

/* libdat copies provider_info. It does not copy the table (provider), which must remain valid as long as the library is
 * loaded. */
extern DAT_RETURN dat_registry_add_provider(
    IN const DAT_PROVIDER      *provider,
    IN const DAT_PROVIDER_INFO *provider_info);

extern DAT_RETURN dat_registry_remove_provider(
    IN const DAT_PROVIDER      *provider,
    IN const DAT_PROVIDER_INFO *provider_info);

#ifdef __cplusplus
}
#endif

#endif /* _DAT_REGISTRY_H_ */
