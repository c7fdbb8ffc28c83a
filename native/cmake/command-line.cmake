# cli/ becomes the package pymtp_cli: "cli" is too common a name for the top level. scikit-build-core cannot rename
# a package, so it is installed from here.

if(SKBUILD_STATE STREQUAL "editable")
    # an editable install points to the checkout
    file(WRITE ${native_generated}/__init__.py "__path__ = [r\"${CMAKE_CURRENT_SOURCE_DIR}/cli\"]\n")
    install(FILES ${native_generated}/__init__.py DESTINATION pymtp_cli COMPONENT pymtp)
else()
    install(DIRECTORY cli/ DESTINATION pymtp_cli COMPONENT pymtp
        FILES_MATCHING PATTERN "*.py" PATTERN "__pycache__" EXCLUDE)
endif()
