# pymtp._native: the extension module that cffi writes from the public headers, and from what it calls of llama.h.

execute_process(COMMAND ${Python_EXECUTABLE} -c "import cffi" RESULT_VARIABLE failed ERROR_QUIET)
if(failed)
    message(FATAL_ERROR "${Python_EXECUTABLE} has no cffi: run its `-m pip install cffi`")
endif()

set(public_headers ${native}/include/pymtp.h ${native}/include/pymtp-text.h) # in the order of their types
set(declarations ${public_headers} ${native}/llama.cffi)

add_custom_command(
    OUTPUT ${native_generated}/_native.c
    COMMAND ${Python_EXECUTABLE} ${native}/build_ffi.py ${native_generated}/_native.c ${declarations}
    DEPENDS ${native}/build_ffi.py ${declarations}
    COMMENT "Writing the Python module's source"
    VERBATIM)

if(SKBUILD_SABI_VERSION)
    # one module for every Python from that version on
    python_add_library(_native MODULE USE_SABI ${SKBUILD_SABI_VERSION} WITH_SOABI ${native_generated}/_native.c)
else()
    python_add_library(_native MODULE WITH_SOABI ${native_generated}/_native.c)
endif()

add_dependencies(_native pymtp-abi) # writes pymtp-abi.h
target_include_directories(_native PRIVATE ${native}/include ${native_generated})
target_link_libraries(_native PRIVATE llama ggml)
set_target_properties(_native PROPERTIES INSTALL_RPATH "${origin}/lib")
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    target_link_options(_native PRIVATE LINKER:--disable-new-dtags) # as for the libraries: see llama-cpp.cmake
endif()

install(TARGETS _native COMPONENT pymtp
    LIBRARY DESTINATION pymtp
    RUNTIME DESTINATION pymtp)

# Names of our own: a loader takes a library that is in the process already for another one of its name. Modules are
# loaded by their paths, and ggml looks for them under its own names.
foreach(library IN LISTS llama_cpp_libraries)
    get_target_property(type ${library} TYPE)
    if(NOT type STREQUAL "MODULE_LIBRARY")
        set_property(TARGET ${library} PROPERTY OUTPUT_NAME pymtp-${library})
    endif()
endforeach()
