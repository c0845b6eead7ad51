// Compiles the headers as C++ and checks that their names have C linkage: opens an adapter, queries and closes it.
//
// SPDX-License-Identifier: MIT OR Apache-2.0
#include <cstdio>

#include <dat/udat.h>
#include <dat/dat_registry.h>

int main()
{
    char name[] = "sm0";
    DAT_IA_HANDLE ia = DAT_HANDLE_NULL;
    DAT_EVD_HANDLE errors = DAT_HANDLE_NULL;
    DAT_IA_ATTR adapter = {};
    DAT_PROVIDER_ATTR provider = {};
    DAT_CNO_HANDLE cno = DAT_HANDLE_NULL;

    if (dat_ia_open(name, 8, &errors, &ia) != DAT_SUCCESS)
        return 1;
    if (dat_ia_query(ia, nullptr, DAT_IA_FIELD_ALL, &adapter, DAT_PROVIDER_FIELD_ALL, &provider) != DAT_SUCCESS)
        return 2;
    if (dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno) != DAT_SUCCESS || dat_cno_free(cno) != DAT_SUCCESS)
        return 3;
    if (dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG) != DAT_SUCCESS)
        return 4;
    std::printf("cxx: OK, %s\n", provider.provider_name);
    return 0;
}
