# Images: llama.cpp's mtmd, which turns them into rows of embeddings, and our C interface to it. Compiled into libllama, and
# hidden there: its programs bring their own. Without its helpers, which read sound and call ffmpeg.

set(mtmd ${llama_cpp_tree}/tools/mtmd)
file(GLOB mtmd_models ${mtmd}/models/*.cpp)

# Most of the time goes into the same headers, and the files of models are small.
add_library(pymtp-mtmd OBJECT ${mtmd}/mtmd.cpp ${mtmd}/mtmd-audio.cpp ${mtmd}/mtmd-image.cpp ${mtmd}/clip.cpp
    ${mtmd_models})
set_target_properties(pymtp-mtmd PROPERTIES CXX_VISIBILITY_PRESET hidden UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 24)

# what resizes pixels keeps its -O3
set_source_files_properties(${mtmd}/mtmd-image.cpp PROPERTIES COMPILE_OPTIONS
    $<$<AND:$<CONFIG:Release>,$<NOT:$<CXX_COMPILER_ID:MSVC>>>:-O3>)

set(checked ${native}/src/images/checked-operands.h)
target_compile_options(pymtp-mtmd PRIVATE $<IF:$<CXX_COMPILER_ID:MSVC>,/FI${checked},-include${checked}>)

file(GLOB native_images_sources CONFIGURE_DEPENDS ${native}/src/images/*.cpp)
add_library(pymtp-images OBJECT ${native_images_sources})

foreach(target pymtp-mtmd pymtp-images)
    target_compile_options(${target} PRIVATE ${runs_rarely})
    target_include_directories(${target} PRIVATE ${mtmd} ${llama_cpp_tree}/vendor ${llama_cpp_tree}/include
        ${llama_cpp_tree}/src ${llama_cpp_tree}/ggml/include ${native}/include ${native}/src/abi ${native}/src/engine
        ${native}/src/cpu ${native}/src/rpc ${native}/src/samplers)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_STANDARD 17)
    target_sources(llama PRIVATE $<TARGET_OBJECTS:${target}>)
endforeach()
