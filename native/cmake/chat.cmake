# Chats: llama.cpp's own templates, parsers of answers and converter of JSON schemas, and our C interface to them. Of
# llama.cpp's common only what these need is compiled, into libllama, and hidden there: its programs bring their own.

set(common ${llama_cpp_tree}/common)
include(${common}/parsers/sources.cmake)
list(FILTER LLAMA_CHAT_PARSERS_SOURCES INCLUDE REGEX "\\.cpp$")
# the first two specialise templates that the others use
set(common_sources ${common}/json.cpp ${common}/jinja/value.cpp ${LLAMA_CHAT_PARSERS_SOURCES})
foreach(name chat chat-auto-parser-generator chat-auto-parser-helpers chat-diff-analyzer chat-peg-parser
        json-schema json-schema-to-grammar peg-parser reasoning-budget trie unicode
        jinja/caps jinja/lexer jinja/parser jinja/runtime jinja/string)
    list(APPEND common_sources ${common}/${name}.cpp)
endforeach()

# what llama.cpp has in files that need far more
list(APPEND common_sources ${native}/src/chat/common-base.cpp)

# Most of the time goes into the same headers: few compilations take a third of it.
add_library(pymtp-common OBJECT ${common_sources})
set_target_properties(pymtp-common PROPERTIES CXX_VISIBILITY_PRESET hidden UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 18)

file(GLOB native_chat_sources CONFIGURE_DEPENDS ${native}/src/chat/*.cpp)
list(REMOVE_ITEM native_chat_sources ${native}/src/chat/common-base.cpp)
add_library(pymtp-chat OBJECT ${native_chat_sources})
set_target_properties(pymtp-chat PROPERTIES UNITY_BUILD ON)

foreach(target pymtp-common pymtp-chat)
    target_include_directories(${target} PRIVATE ${common} ${llama_cpp_tree}/vendor ${llama_cpp_tree}/include
        ${llama_cpp_tree}/ggml/include ${native}/include ${native}/src/abi ${native}/src/chat
        ${native}/src/rpc ${native}/src/samplers)
    # templates take 1.4 times as long with -Og
    target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<NOT:$<CXX_COMPILER_ID:MSVC>>>:-O1>)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_STANDARD 17)
    target_sources(llama PRIVATE $<TARGET_OBJECTS:${target}>)
endforeach()
