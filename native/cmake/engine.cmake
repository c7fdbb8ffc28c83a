# The engine: our sources, in folders by what they are part of. abi (the C interface), engine, heads, lookup and samplers are
# compiled into libllama, where llama.cpp's private headers are theirs to use; cpu, cuda and rpc into the backends of these
# names, with their compilers' options. Headers are included by name alone, as the patches include them. chat has a
# file of its own: chat.cmake.

set(native_folders ${native}/src/abi ${native}/src/engine ${native}/src/heads ${native}/src/lookup ${native}/src/samplers)
file(GLOB native_sources CONFIGURE_DEPENDS ${native}/src/abi/*.cpp ${native}/src/engine/*.cpp ${native}/src/lookup/*.cpp
    ${native}/src/heads/*.cpp ${native}/src/samplers/*.cpp)
file(GLOB native_cpu_sources CONFIGURE_DEPENDS ${native}/src/cpu/*.cpp)
file(GLOB native_cuda_sources CONFIGURE_DEPENDS ${native}/src/cuda/*.cu)
file(GLOB native_rpc_sources CONFIGURE_DEPENDS ${native}/src/rpc/*.cpp)
file(GLOB native_headers CONFIGURE_DEPENDS ${native}/src/*/*.h ${native}/src/*/*.cuh ${native}/include/*.h)

# exceptions pass through ggml's C where a damaged file fails one of its asserts, see src/abi/guard.h
target_compile_options(ggml-base PRIVATE $<$<AND:$<COMPILE_LANGUAGE:C>,$<C_COMPILER_ID:GNU,Clang,AppleClang>>:-fexceptions>)

# A scheduler reserves room for that many copied inputs of each node, 20 kB a node by default: some 34 MB for each graph
# that is kept, which are never used, but which an allocator mixes with what is. Splits with more inputs grow.
target_compile_definitions(ggml-base PRIVATE GGML_SCHED_MAX_SPLIT_INPUTS=4)

list(GET cpu_libraries 0 cpu_library) # they share a folder, and the options of a file there
foreach(library IN LISTS cpu_libraries)
    target_sources(${library} PRIVATE ${native_cpu_sources})
    target_include_directories(${library} PRIVATE ${native}/src/cpu)
endforeach()
# Which of these runs is chosen when the program does; a build for this machine alone has but the one that it takes.
# GCC's own headers for AVX-512 use what they leave undefined.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT MSVC)
    set(avx512 "-Wno-uninitialized;$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>")
    if(GGML_NATIVE AND NOT native_all_kernels)
        target_compile_definitions(${cpu_library} PRIVATE MTP_ONE_KERNEL)
    else()
        list(APPEND avx512 -mavx512f -mavx512bw -mavx512vl -mavx512vnni -mfma -mf16c)
        set_source_files_properties(${native}/src/cpu/cpu-few-rows-avx2.cpp TARGET_DIRECTORY ${cpu_library}
            PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
    endif()
    set_source_files_properties(${native}/src/cpu/cpu-few-rows-avx512.cpp TARGET_DIRECTORY ${cpu_library}
        PROPERTIES COMPILE_OPTIONS "${avx512}")
endif()
# Their sums must not depend on what a compiler fuses.
if(NOT MSVC)
    set_source_files_properties(${native}/src/cpu/cpu-attention.cpp ${native}/src/cpu/cpu-few-rows-neon.cpp
        TARGET_DIRECTORY ${cpu_library} PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
endif()
if(TARGET ggml-cuda)
    target_sources(ggml-cuda PRIVATE ${native_cuda_sources})
    target_include_directories(ggml-cuda PRIVATE ${native}/src/cuda ${llama_cpp_tree}/ggml/src/ggml-cuda)
    target_compile_definitions(ggml-cuda PRIVATE MTP_CUDA) # not HIP, not MUSA, which compile the same files
    # Hopper's tensor cores take their operands from shared memory only where code is for 90a, which no other GPU runs.
    get_target_property(architectures ggml-cuda CUDA_ARCHITECTURES)
    list(TRANSFORM architectures REPLACE "^90(|-real)$" "90a\\1")
    list(TRANSFORM architectures REPLACE "^90-virtual$" "90-virtual;90a-real")
    set_target_properties(ggml-cuda PROPERTIES CUDA_ARCHITECTURES "${architectures}")
    if(PYMTP_PORTABLE) # pip install pymtp-gguf[cuda]
        set(nvidia ${origin}/../../nvidia)
        set_target_properties(ggml-cuda PROPERTIES
            INSTALL_RPATH "${origin};${nvidia}/cublas/lib;${nvidia}/cuda_runtime/lib;${nvidia}/cu13/lib")
    endif()
endif()
foreach(target ggml-hip ggml-musa)
    if(TARGET ${target})
        target_include_directories(${target} PRIVATE ${native}/src/cuda ${llama_cpp_tree}/ggml/src/ggml-cuda)
    endif()
endforeach()
if(TARGET ggml-rpc)
    target_sources(ggml-rpc PRIVATE ${native_rpc_sources})
    target_include_directories(ggml-rpc PRIVATE ${native}/src/rpc ${native}/src/cuda ${native_generated})
endif()
target_include_directories(ggml-base PRIVATE ${native}/src/engine)
target_sources(llama PRIVATE ${native_sources})
target_include_directories(llama PRIVATE ${native_folders} ${native}/src/cpu ${native}/src/cuda ${native}/src/rpc ${native}/include ${llama_cpp_tree}/src)
# merged by folders, and the largest by halves, so that an edit costs some seconds
foreach(group abi/ heads/ samplers/ engine/mtp-[a-g] engine/mtp-[h-z])
    file(GLOB sources ${native}/src/${group}*.cpp)
    string(MAKE_C_IDENTIFIER ${group} name)
    pymtp_merge(${name} ${sources})
endforeach()
set_source_files_properties(${native}/src/samplers/sampler-rules.cpp TARGET_DIRECTORY llama
    PROPERTIES INCLUDE_DIRECTORIES ${llama_cpp_tree}/common)
if(WIN32)
    set_target_properties(llama PROPERTIES WINDOWS_EXPORT_ALL_SYMBOLS ON)
endif()

add_custom_command(
    OUTPUT ${native_generated}/pymtp-abi.h ${native_generated}/pymtp-abi.cpp
    COMMAND ${Python_EXECUTABLE} ${native}/write_abi_id.py ${native_generated}
    DEPENDS ${native}/write_abi_id.py ${native}/llama_cpp.pin ${native_patches} ${native_sources} ${native_chat_sources} ${native_images_sources}
        ${native_cpu_sources} ${native_cuda_sources} ${native_rpc_sources} ${native_headers}
    COMMENT "Naming the sources"
    VERBATIM)

add_library(pymtp-abi OBJECT ${native_generated}/pymtp-abi.cpp)
if(TARGET ggml-rpc)
    add_dependencies(ggml-rpc pymtp-abi) # a server names what it was built from
endif()
target_include_directories(pymtp-abi PRIVATE ${native}/include)
set_target_properties(pymtp-abi PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_STANDARD 17)
target_sources(llama PRIVATE $<TARGET_OBJECTS:pymtp-abi>)
