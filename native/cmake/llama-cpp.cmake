# The patched llama.cpp: its tree, its targets, where its libraries go.
#
#   native_patches_folder  the series; a folder without any: none
#   llama_cpp_parts        what is there to be built beside the libraries: COMMON, TOOLS, ... (default: nothing)
#   -DPYMTP_PORTABLE=ON    for any machine of this architecture, as wheels are: see below

set(llama_cpp_tree ${CMAKE_CURRENT_BINARY_DIR}/llama.cpp)

if(NOT native_patches_folder)
    set(native_patches_folder ${native}/patches)
endif()
file(GLOB native_patches CONFIGURE_DEPENDS ${native_patches_folder}/*.patch)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
    ${native}/llama_cpp.pin ${native}/prepare_llama_cpp.py ${native}/llama_cpp_source.py ${native}/patch_series.py
    ${native_patches})

set(prepare ${Python_EXECUTABLE} ${native}/prepare_llama_cpp.py tree
    --tree ${llama_cpp_tree} --cache ${CMAKE_CURRENT_BINARY_DIR} --patches ${native_patches_folder})
if(PYMTP_LLAMA_CPP_DIR)
    list(APPEND prepare --source ${PYMTP_LLAMA_CPP_DIR})
endif()
message(STATUS "Preparing llama.cpp")
execute_process(COMMAND ${prepare} RESULT_VARIABLE failed ERROR_VARIABLE error ERROR_STRIP_TRAILING_WHITESPACE)
if(failed)
    message(FATAL_ERROR "  ${error}") # indented: CMake would break it into short lines
endif()

set(BUILD_SHARED_LIBS ON)
set(GGML_RPC ON) # no option: the caches of earlier checkouts hold OFF

# A build is for the machine that it is made on, unless it is portable. Then each backend is a file of its own, loaded by
# the program (pymtp/binding/library.py), and that of CPUs is there once for each of these kinds of CPU, of which ggml
# takes the best that the machine is. Of ggml's list are left out: what changes no kernel (VBMI, and AMX: see below),
# what few machines have (F16C without AVX2, SVE without i8mm), and SME, which GCC does not know before version 14.
option(PYMTP_PORTABLE "for any machine of this architecture" OFF)
set(PYMTP_CPU_VARIANTS x64 sse42 sandybridge haswell alderlake skylakex cascadelake zen4
    armv8.0_1 armv8.2_2 armv8.6_1 apple_m1 apple_m2_m3
    CACHE STRING "ggml's variants for CPUs that a portable build has, of all architectures (default: those that matter)")
if(PYMTP_PORTABLE)
    set(GGML_NATIVE OFF)
    set(GGML_BACKEND_DL ON)
    set(GGML_CPU_ALL_VARIANTS ON)
endif()
foreach(part COMMON TESTS TOOLS EXAMPLES SERVER APP MTMD)
    set(LLAMA_BUILD_${part} OFF)
endforeach()
foreach(part IN LISTS llama_cpp_parts)
    set(LLAMA_BUILD_${part} ON)
endforeach()
# llama.cpp asks git for its commit. It would find ours, and compile again after each of our commits.
set(ENV{GIT_CEILING_DIRECTORIES} ${CMAKE_CURRENT_BINARY_DIR})
set(LLAMA_BUILD_NUMBER 0)
set(LLAMA_BUILD_COMMIT unknown)

# Without these a build would end after minutes of shaders: docs/installing.md has the names of packages.
if(GGML_VULKAN)
    find_package(Vulkan 1.3.272 REQUIRED COMPONENTS glslc)
    find_package(SPIRV-Headers CONFIG REQUIRED HINTS $ENV{VULKAN_SDK})
endif()

# EXCLUDE_FROM_ALL: only what libllama needs
add_subdirectory(${llama_cpp_tree} ${CMAKE_CURRENT_BINARY_DIR}/llama.cpp-build EXCLUDE_FROM_ALL)

# Every shared library of a folder of the build and of those below it: ggml's backends depend on the options.
function(pymtp_shared_libraries folder result)
    get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
    set(found "")
    foreach(target IN LISTS targets)
        get_target_property(type ${target} TYPE)
        if(type MATCHES "^(SHARED|MODULE)_LIBRARY$")
            list(APPEND found ${target})
        endif()
    endforeach()
    get_property(subfolders DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
    foreach(subfolder IN LISTS subfolders)
        pymtp_shared_libraries(${subfolder} more)
        list(APPEND found ${more})
    endforeach()
    set(${result} ${found} PARENT_SCOPE)
endfunction()

pymtp_shared_libraries(${llama_cpp_tree} llama_cpp_libraries)

# Most of a build's time goes into the same headers and templates, so libllama's files are merged into few compilations.
# What runs once for a model, a request or a pass (its file, its graph, the tokens of a prompt) is a target with -Og, which
# takes half of the time; what runs for each row or token keeps the -O3 of a release. The loader comes first, as it
# specialises templates that the others use.
if(NOT DEFINED runs_rarely)
    set(runs_rarely $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:C,CXX>,$<NOT:$<CXX_COMPILER_ID:MSVC>>>:-Og>)
endif()
set(rare_sources llama-model-loader.cpp llama-adapter.cpp llama-arch.cpp llama-chat.cpp llama-model.cpp
    llama-model-saver.cpp llama-quant.cpp llama-vocab.cpp unicode.cpp)
set(context_sources llama-context.cpp llama-graph.cpp llama-io.cpp llama-cparams.cpp llama-impl.cpp llama-hparams.cpp
    llama-mmap.cpp llama.cpp)
file(GLOB model_sources ${llama_cpp_tree}/src/models/*.cpp)
get_target_property(llama_sources llama SOURCES)
list(REMOVE_ITEM llama_sources ${rare_sources} ${context_sources} ${model_sources})
set_target_properties(llama PROPERTIES SOURCES "${llama_sources}" UNITY_BUILD_MODE GROUP)
list(TRANSFORM rare_sources PREPEND ${llama_cpp_tree}/src/)
list(TRANSFORM context_sources PREPEND ${llama_cpp_tree}/src/)
add_library(pymtp-rare OBJECT ${rare_sources} ${model_sources} ${context_sources})
set_target_properties(pymtp-rare PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 41)
target_compile_features(pymtp-rare PRIVATE cxx_std_17)
set_source_files_properties(${llama_cpp_tree}/src/models/modern-bert.cpp # has a constant of the name of one in lfm2.cpp
    PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
target_compile_definitions(pymtp-rare PRIVATE $<TARGET_PROPERTY:llama,COMPILE_DEFINITIONS>)
target_compile_options(pymtp-rare PRIVATE $<TARGET_PROPERTY:llama,COMPILE_OPTIONS> ${runs_rarely})
target_include_directories(pymtp-rare PRIVATE $<TARGET_PROPERTY:llama,INCLUDE_DIRECTORIES>)
target_sources(llama PRIVATE $<TARGET_OBJECTS:pymtp-rare>)
set_source_files_properties(${llama_cpp_tree}/ggml/src/gguf.cpp ${llama_cpp_tree}/ggml/src/ggml-opt.cpp
    TARGET_DIRECTORY ggml-base PROPERTIES COMPILE_OPTIONS "${runs_rarely}")

# merges files of libllama
function(pymtp_merge group)
    set_source_files_properties(${ARGN} TARGET_DIRECTORY llama
        PROPERTIES UNITY_GROUP ${group} SKIP_UNITY_BUILD_INCLUSION OFF)
endfunction()

set(src ${llama_cpp_tree}/src)
file(GLOB cache_sources ${src}/llama-kv-cache*.cpp)
file(GLOB memory_sources ${src}/llama-memory*.cpp)
pymtp_merge(cache ${cache_sources})
pymtp_merge(memory ${memory_sources} ${src}/llama-batch.cpp)
pymtp_merge(sampling ${src}/llama-grammar.cpp ${src}/llama-sampler.cpp)

# one, or one for each kind of CPU
set(cpu_libraries ${llama_cpp_libraries})
list(FILTER cpu_libraries INCLUDE REGEX "^ggml-cpu")

# GCC 12 compiles llama.cpp's set-up of AMX tiles wrongly: it drops the stores to the configuration, and the first product
# ends the process. Our kernels for few rows, which read llama.cpp's other layouts, are not for AMX's.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT MSVC)
    include(CheckCXXCompilerFlag)
    check_cxx_compiler_flag(-mno-amx-tile pymtp_knows_amx)
    if(pymtp_knows_amx)
        foreach(library IN LISTS cpu_libraries)
            target_compile_options(${library} PRIVATE -mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
        endforeach()
    endif()
endif()

if(APPLE)
    set(origin "@loader_path")
else()
    set(origin "$ORIGIN")
endif()

foreach(library IN LISTS llama_cpp_libraries)
    # A wheel holds no symbolic links: libx.so.0.25.3 and its two links would be three copies.
    set_property(TARGET ${library} PROPERTY VERSION)
    set_property(TARGET ${library} PROPERTY SOVERSION)
    set_property(TARGET ${library} PROPERTY PUBLIC_HEADER) # not for the wheel
    # the link path: CUDA's libraries, where they are not in the system's folders
    set_target_properties(${library} PROPERTIES
        INSTALL_RPATH ${origin} INSTALL_RPATH_USE_LINK_PATH ON EXCLUDE_FROM_ALL OFF)
    if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
        # RPATH, not RUNPATH: another libggml in LD_LIBRARY_PATH must not come first.
        # A toolchain that links libstdc++ statically must not make libggml-cuda export it to the others.
        target_link_options(${library} PRIVATE LINKER:--disable-new-dtags LINKER:--exclude-libs,ALL)
        if(NOT native_interposed)
            target_link_options(${library} PRIVATE LINKER:-Bsymbolic)
        endif()
    endif()
endforeach()

install(TARGETS ${llama_cpp_libraries} COMPONENT pymtp
    LIBRARY DESTINATION pymtp/lib
    RUNTIME DESTINATION pymtp/lib)
